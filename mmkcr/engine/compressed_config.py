"""From an ordinary config of the host libraries and a method base to the config of a run.

A method base (``configs/_base_/methods``) gives a config the key ``compression`` and the runner
type ``mmkcr.CompressionRunner``; it changes nothing else before the run is built. So one base fits
any host config. The hosts' own ``tools/train.py`` reads no ``mmkcr::`` base, which MMEngine looks
up before anything imports ``mmkcr``, but a path to it with ``custom_imports``, or a dumped config.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner, find_latest_checkpoint

from mmkcr.datasets.data_check import pipeline_config
from mmkcr.registry import RUNNERS

#: Keys of ``compression``, with their defaults.
DEFAULTS: dict[str, Any] = dict(
    sites=None, gates=None, structure=None, weights=None, target=None, part=None,
    input_shape=None, wrapper=None, price=None, entropy_weight=None, regularizers=None,
    scores=None, feature_layer=None, loop='plain', fraction=0.3, split_seed=0, architecture=None,
    paramwise=None, hooks=(), scope='backbone')
#: Constructor of the optimizers, by loop.
_CONSTRUCTORS = dict(plain=None, bilevel='mmkcr.SearchOptimWrapperConstructor',
                     joint='mmkcr.JointOptimWrapperConstructor')
_CHOICES = dict(scope=['backbone', 'model'], loop=list(_CONSTRUCTORS))
#: Entries of ``model`` that are the wrapper's.
_OF_WRAPPER = ('architecture', 'price', 'regularizers', 'feature_layer', 'entropy_weight',
               'reconstruction', 'scores')


@RUNNERS.register_module()
class CompressionRunner(Runner):
    """MMEngine's ``Runner`` of a config with the key ``compression``."""

    @classmethod
    def from_cfg(cls, cfg: Config) -> Runner:
        """Build the runner of the config that ``compression`` stands for."""
        return Runner.from_cfg(expand_compression(cfg))


def expand_compression(config: Config) -> Config:
    """Expand ``compression`` to the ordinary config that it stands for.

    - The backbone is wrapped in ``mmkcr.Searchable`` with ``sites`` and either ``gates`` or
      ``structure``. With ``sites='own'`` a backbone of this package takes these itself and keeps
      its kinds of site. With ``scope='model'`` the whole task model is wrapped.
    - The task model is wrapped in ``wrapper`` (a type, or a dict with further arguments) with
      ``price`` (and its ``target``) and ``regularizers``, without entries that are None.
    - ``scores`` is the ``sensitivity.json`` of ``mmkcr compress`` that gates start from.
    - ``loop='bilevel'`` splits data and optimizers as in KCR's algorithm 1 (``fraction`` of the
      samples for the gates; ``architecture`` is their optimizer). ``'joint'`` gives the gates a
      parameter group of their own. ``'plain'`` leaves the training as it is.
    - ``hooks`` are added. A value such as ``'45%'`` means that share of the run, in epochs or
      iterations, rounded, and at least 1; a ``begin`` below 100 % is at most the last of them.
    - Entries that the config already has stay: optimizers that are split, with their loop, and
      hooks of a type that ``custom_hooks`` has. Entries of ``model`` that belong to the wrapper,
      such as ``model.price.weight`` or ``model.architecture.backbone.qk_mask``, are merged last.
    - ``weights`` is the checkpoint to start from, unless ``load_from`` names another.

    Args:
        config (Config): Config of a run; without ``compression`` it is returned as it is.

    Raises:
        ValueError: Unknown keys, or a config that ``compression`` does not fit.
    """
    if config.get('compression') is None:
        return config
    config = copy.deepcopy(config)
    given = config.pop('compression')
    # the result is an ordinary config, whose dump needs no runner of its own
    if config.get('runner_type') == 'mmkcr.CompressionRunner':
        config.pop('runner_type')
    config.custom_imports = with_import(config)
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise ValueError(f'expected keys of `compression` among {sorted(DEFAULTS)}, found '
                         f'{unknown}')
    settings = ConfigDict({**DEFAULTS, **given})
    for key, choices in _CHOICES.items():
        if settings[key] not in choices:
            raise ValueError(f'expected `{key}` of `compression` among {choices}, found '
                             f'{settings[key]!r}')
    if not isinstance(config.get('model'), Mapping) or 'backbone' not in config.model:
        raise ValueError('expected a `model` with a `backbone` for `compression`, found the keys '
                         f'{sorted(config.get("model") or config.keys())}')
    # entries for the wrapper that inheriting configs or `--cfg-options` put into `model`
    overrides = {key: config.model.pop(key) for key in _OF_WRAPPER if key in config.model}
    # the order matters: the wrapper takes the wrapped backbone, the loop splits the optimizer, and
    # paramwise settings go to the weights' part
    _wrap_backbone(config, settings)
    if settings.wrapper is not None:
        _wrap_model(config, settings)
    # MMEngine's own merge, so that `_delete_` and nested dicts work as in any config
    config.merge_from_dict(dict(model=overrides))
    if settings.loop != 'plain':
        _set_loop(config, settings)
    if settings.paramwise is not None:
        weights = config.optim_wrapper.get('weights', config.optim_wrapper)
        paramwise = weights.setdefault('paramwise_cfg', ConfigDict())
        paramwise.setdefault('custom_keys', ConfigDict()).update(settings.paramwise)
    _add_hooks(config, settings)
    # commands, the hosts' too, put the checkpoint that they are given into `load_from`; to resume
    # without one is to resume from the last of the work directory
    other = config.get('load_from') is not None or (
        config.get('resume') and find_latest_checkpoint(config.get('work_dir') or '.'))
    if settings.weights is not None and not other:
        config.load_from, config.resume = settings.weights, False
    return config


def with_import(config: Config) -> dict[str, Any]:
    """The config's ``custom_imports``, with this package added.

    A method base cannot have the key: two bases of one config may not share a key, and hosts use
    it.
    """
    imports = config.get('custom_imports') or dict(imports=[], allow_failed_imports=False)
    names = imports['imports'] if isinstance(imports['imports'], list) else [imports['imports']]
    return dict(imports, imports=[*names, *({'mmkcr'} - set(names))])


def _entries_of(settings: ConfigDict, *keys: str) -> dict[str, Any]:
    return {key: settings[key] for key in keys if settings[key] is not None}


def _wrap_backbone(config: Config, settings: ConfigDict) -> None:
    """Wrap the backbone, or the whole model, in ``mmkcr.Searchable``."""
    given = _entries_of(settings, 'gates', 'structure')
    if settings.scope == 'model':
        if not settings.sites or settings.sites == 'own':
            raise ValueError("expected `sites` in `compression` with `scope='model'`, found "
                             f'{settings.sites!r}')
        config.model = ConfigDict(type='mmkcr.Searchable', backbone=add_scope(config.model, config),
                                  sites=settings.sites, **given)
        return
    backbone = config.model.backbone
    of_package = backbone.get('type', '').startswith('mmkcr.')
    if settings.sites == 'own' and not of_package:
        raise ValueError("expected a backbone of this package (`type='mmkcr....'`) for "
                         f"`sites='own'` in `compression`, found `{backbone.get('type')}`")
    # a backbone of this package needs no `Searchable` around it
    if settings.sites == 'own' or (
            of_package and 'structure' not in backbone and settings.sites is None):
        added = dict(backbone)  # a class of this package knows its kinds
    else:
        added = dict(type='mmkcr.Searchable', backbone=add_scope(backbone, config),
                     sites=settings.sites or ['mlp_channels'])
    config.model.backbone = ConfigDict(added, **given)


def add_scope(backbone: Mapping[str, Any], config: Config) -> ConfigDict:
    """A config of a model or backbone whose type names its library.

    ``mmkcr.Searchable`` builds it from the root registry, whatever the scope is then.
    """
    backbone = ConfigDict(backbone)
    # a dict may have a scope of its own, as one of another library has that is inherited
    scope = backbone.pop('_scope_', None) or config.get('default_scope')
    if '.' not in backbone.type and scope:
        backbone.type = f'{scope}.{backbone.type}'
    return backbone


def _wrap_model(config: Config, settings: ConfigDict) -> None:
    """Wrap the task model in the wrapper that adds price and regularisers."""
    wrapper = settings.wrapper if isinstance(settings.wrapper, Mapping) else \
        dict(type=settings.wrapper)
    model = dict(wrapper, architecture=config.model)
    if settings.price is not None:
        model['price'] = dict(settings.price, input_shape=settings.input_shape
                              or image_size(config), **_entries_of(settings, 'part', 'target'))
        model.update(_entries_of(settings, 'entropy_weight'))
    if settings.regularizers is not None:
        model['regularizers'] = _entries_of(settings.regularizers, *settings.regularizers)
    config.model = dict(model, **_entries_of(settings, 'feature_layer', 'scores'))
    optimizer = config.get('optim_wrapper') or {}
    if not str(optimizer.get('constructor') or 'mmkcr.').startswith('mmkcr.'):
        # the hosts' read the task model's names and methods, which the wrapper hides
        optimizer.update(constructor='mmkcr.TaskOptimWrapperConstructor',
                         of_task=optimizer.constructor)


def task_config(config: Config) -> ConfigDict:
    """The part of a config that is about the task model, inside our training wrappers."""
    model = config.model
    while 'architecture' in model:
        model = model.architecture
    return model


def image_size(config: Config, scope: str | None = None) -> tuple[int, int, int]:
    """The image size (C, H, W) at which MACs are counted; it depends on the config alone.

    The library is ``scope``, by default the config's. mmdet: the size that test images are resized
    to, at most 3 x 800 x 1280. mmseg: the data preprocessor's ``size``, or 3 x 512 x 512. Otherwise
    the size that test images are cropped or resized to, the backbone's ``img_size``, or
    3 x 224 x 224.
    """
    scope, model = scope or config.get('default_scope'), task_config(config)
    if model.get('type') == 'mmkcr.Searchable':  # around a whole model
        model = model.backbone
    backbone = model
    while isinstance(backbone.get('backbone'), Mapping):  # also in `mmkcr.Searchable`, or in two
        backbone = backbone['backbone']
    pipeline = pipeline_config((config.get('test_dataloader') or {}).get('dataset'))
    if scope == 'mmdet':
        scale = next((step['scale'] for step in pipeline
                      if step['type'].split('.')[-1] == 'Resize' and 'scale' in step), (1280, 800))
        # mmcv's scale is (W, H); min compares (H, W) pairs by H first
        size = min((800, 1280), (scale, scale) if isinstance(scale, int) else tuple(scale[::-1]))
    elif scope == 'mmseg':
        preprocessor = model.get('data_preprocessor') or config.get('data_preprocessor') or {}
        size = preprocessor.get('size') or (512, 512)
    else:
        size = _cropped_size(pipeline) or backbone.get('img_size', 224)
    height, width = (size, size) if isinstance(size, int) else size
    channels = backbone.get('in_channels', backbone.get('in_chans'))  # of the hosts, of timm
    return channels if isinstance(channels, int) else 3, int(height), int(width)


def _cropped_size(pipeline: Sequence[Mapping[str, Any]]) -> int | Sequence[int] | None:
    """(H, W), or one number for both, of images after transforms of mmpretrain, if they say it."""
    size = None
    for step in pipeline:
        name = step['type'].split('.')[-1]
        if name == 'CenterCrop':
            size = step['crop_size']
        elif name == 'Resize' and 'scale' in step and not step.get('keep_ratio'):
            scale = step['scale']
            size = scale if isinstance(scale, int) else scale[::-1]  # (W, H)
    return size


def run_length(config: Config) -> tuple[int, bool]:
    """Length of a training, and whether it counts epochs; a ``ValueError`` if it has neither."""
    train = config.get('train_cfg') or {}
    for key, by_epoch in (('max_epochs', True), ('max_iters', False)):
        if train.get(key):
            return int(train[key]), by_epoch
    raise ValueError('expected a `train_cfg` with `max_epochs` or `max_iters`, found '
                     f'{dict(train)}')


def _set_loop(config: Config, settings: ConfigDict) -> None:
    """Split the optimizers and, for a bilevel search, the data."""
    length, by_epoch = run_length(config)
    wrapper = config.optim_wrapper
    gates = ConfigDict(settings.architecture or {})
    # a config may hold both optimizers, and its loop, itself
    if wrapper.get('constructor') == _CONSTRUCTORS[settings.loop]:
        return  # split by the config itself
    if settings.loop == 'joint':
        if wrapper.get('constructor'):
            constructor = wrapper.get('of_task', wrapper.constructor)
            raise ValueError('expected an `optim_wrapper` without a constructor of its own for '
                             f'`loop="joint"`, found `{constructor}`')
        wrapper.update(constructor=_CONSTRUCTORS['joint'], architecture=gates)
        return
    # both steps run in the same precision
    amp = {key: wrapper[key] for key in ('type', 'loss_scale', 'dtype') if key in wrapper}
    config.optim_wrapper = ConfigDict(
        constructor=_CONSTRUCTORS['bilevel'], weights=wrapper,
        architecture=dict(amp, optimizer=gates))
    # gates: cosine to a tenth over the whole run; the config's own schedulers keep the weights
    schedulers = config.get('param_scheduler') or []
    cosine = dict(type='CosineAnnealingLR', T_max=length, end=length, eta_min_ratio=0.1,
                  by_epoch=by_epoch, **(dict(convert_to_iter_based=True) if by_epoch else {}))
    config.param_scheduler = ConfigDict(
        weights=schedulers if isinstance(schedulers, list) else [schedulers],
        architecture=[cosine])
    # the loops take the arguments of the hosts' loops, and refuse others
    config.train_cfg = ConfigDict(
        type='mmkcr.BilevelTrainLoop' if by_epoch else 'mmkcr.IterBilevelTrainLoop',
        architecture_fraction=settings.fraction, split_seed=settings.split_seed,
        **{key: value for key, value in config.train_cfg.items()
           if key not in ('type', 'by_epoch', '_scope_')})


def _add_hooks(config: Config, settings: ConfigDict) -> None:
    """Add the method's hooks that the config lacks, and the hook for exact resuming."""
    custom = list(config.get('custom_hooks') or [])
    types = {hook['type'] for hook in custom}
    added = [hook for hook in settings.hooks if hook['type'] not in types]
    config.custom_hooks = custom + [ConfigDict(_resolve_shares(hook, config)) for hook in added]
    config.setdefault('default_hooks', ConfigDict())
    config.default_hooks.setdefault('exact_resume', dict(type='mmkcr.ExactResumeHook'))


def _resolve_shares(hook: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Turn a hook's shares of the run into numbers of epochs or iterations."""
    shares = {key: float(value[:-1]) / 100 for key, value in hook.items()
              if isinstance(value, str) and value.endswith('%')}
    if not shares:
        return dict(hook)
    length, by_epoch = run_length(config)
    counts = {key: max(1, round(share * length)) for key, share in shares.items()}
    if shares.get('begin', 1) < 1:  # of a short run the last, which it reaches
        counts['begin'] = min(counts['begin'], length - 1)
    # hooks count epochs by default
    return {**hook, **counts, **({} if by_epoch else dict(by_epoch=False))}
