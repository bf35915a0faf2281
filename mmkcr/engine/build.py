"""Models from configs and checkpoints: no data set, no runner."""

import copy
import inspect
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from torch import nn

from mmkcr.core.checks import check_place, did_you_mean, one_line
from mmkcr.core.file_names import REPORT
from mmkcr.core.saved_folder import check_folder
from mmkcr.engine.compressed_config import expand_compression, image_size, task_config
from mmkcr.hosts import TRANSFORMERS_4, prepare_hosts
from mmkcr.models.counting import tell_other_sizes
from mmkcr.models.loading import load_task, weights_of
from mmkcr.safe_load import is_trusted, read_checkpoint

_NO_OPS = ("expected mmcv's compiled operators for this model, found an mmcv without them: get "
           'them with `pip install "setuptools>=80" wheel packaging ninja` and `pip install '
           '--no-cache-dir --force-reinstall --no-deps --no-build-isolation onedl-mmcv=='
           '{}` (about 10 minutes, with gcc)')


#: Libraries whose names are scopes of configs.
HOSTS = ('mmpretrain', 'mmdet', 'mmseg')


def read_config(path: str | Path) -> Config:
    """Read a config: a file, ``library::path`` of an installed library, or a trusted checkpoint.

    A config without a ``default_scope`` (mmpretrain's ``*_headless.py``) gets that of its library.
    Classes in a config of MMEngine's pure Python style become their names.

    Raises:
        FileNotFoundError: There is no such config, or it is of a saved network without its files.
        ValueError: The file is no config, or is of a saved network and was changed since.
    """
    prepare_hosts()
    file = Path(_resolve(str(path)))
    if not file.is_file():
        others = [str(file.with_name(other.name)) for other in file.parent.glob('*.py')]
        raise FileNotFoundError(f'expected a config file at `{path}`, found none'
                                f'{did_you_mean(str(file), others)}')
    if file.with_name(REPORT).is_file():
        check_folder(file.parent)
    if file.suffix == '.pth' and is_trusted():  # its config is Python, which is run
        meta = read_checkpoint(file).get('meta') or {}
        return Config.fromstring(meta.get('cfg', ''), '.py')
    if file.suffix not in ('.py', '.json', '.yaml', '.yml'):
        raise ValueError(f'expected a config file (.py, .json or .yaml), or a checkpoint with its '
                         f'config and `--trust-checkpoint`, found `{path}`')
    try:
        if file.suffix in ('.yaml', '.yml'):  # MMEngine's own reader of YAML makes any object
            yaml.safe_load(file.read_text(encoding='utf8'))
        config = Config.fromfile(file)
    except (ImportError, OSError):  # which name what is missing
        raise
    except Exception as error:  # of Python, JSON and YAML, each its own
        raise ValueError(f'expected a config at `{path}`, found one that cannot be read '
                         f'({type(error).__name__}: {one_line(error, 200)})') from error
    if not isinstance(config.get('model') or {}, Mapping):
        raise ValueError(f'expected a config whose `model` is a dict at `{path}`, found '
                         f'{str(config.model):.60}')
    if is_pure_python(config.filename):  # everybody who reads a `type` expects a name
        config = Config(config.to_dict(), filename=config.filename)
    if config.get('default_scope') is None:
        # MMEngine notes the library of a base in its outermost dicts
        scope = str(path).partition('::')[0] if '::' in str(path) else \
            (config.get('model') or {}).get('_scope_')
        if scope in HOSTS:
            config.default_scope = scope
    return config


def is_pure_python(path: str | Path) -> bool:
    """Whether a config file imports classes and bases instead of naming them."""
    return Config._is_lazy_import(str(path))


def _resolve(path: str) -> str:
    if '::' not in path:
        return path
    if path.startswith(('timm::', 'transformers::')):
        raise ValueError('expected a config of mmpretrain, mmdet, mmseg or mmkcr '
                         f'(`library::path`), found `{path}`: names of timm and transformers are '
                         'for `mmkcr compress`, `frontier`, `flops`, `export` and `latency`')
    try:
        return Config._get_cfg_path(path, '')[0]
    except (AssertionError, ImportError, FileNotFoundError, ValueError) as error:
        library, _, name = path.partition('::')
        package = find_spec(library) if library.isidentifier() else None
        folder = Path(package.origin or '').parent / '.mim/configs' if package else Path()
        names = [f'{library}::{file.relative_to(folder)}' for file in folder.glob('*/**/*.py')] \
            if package and name else []
        reason = '' if names else f' ({error})'
        raise FileNotFoundError('expected a config of an installed library (`library::path`), '
                                f'found `{path}`{reason}{did_you_mean(path, names)}') from error


def build_model(config: Config) -> nn.Module:
    """Build the model of a config as a Runner would, on the CPU.

    It is in eval mode. Weights are random: nothing is downloaded, ``init_cfg`` is not applied.

    Raises:
        FileNotFoundError: A file that the model needs is missing.
        ImportError: A package, or mmcv's compiled operators.
        ValueError: The config has no ``model``, or the built model differs from its structure file.
    """
    if not isinstance(config.get('model'), Mapping):
        raise ValueError('expected a config with a `model`, found the keys '
                         f'{sorted(config.keys())}')
    prepare_hosts()
    init_default_scope(config.get('default_scope', 'mmengine'))
    model = copy.deepcopy(dict(config.model))  # detectors of mmdet add entries to theirs
    if config.get('data_preprocessor') is not None:
        model.setdefault('data_preprocessor', config.data_preprocessor)
    try:
        built = MODELS.build(model)
    except ImportError as error:
        if 'mmcv._ext' not in str(error):
            raise
        import mmcv
        raise ImportError(_NO_OPS.format(mmcv.__version__)) from error
    except OSError as error:
        if type(error) is not OSError:  # as of a hub that cannot be reached
            raise
        raise FileNotFoundError(
            f'expected all files that `{model.get("type")}` needs, found that one is missing: '
            f'{one_line(error)}') from error
    except RuntimeError as error:
        missing = re.search(r'pip install ([\w-]+)', str(error))  # as mmdet says it
        if not missing:
            raise
        # as mmdet says it of transformers 5, too
        name, package = ('transformers 4', TRANSFORMERS_4) if missing[1] == 'transformers' else \
            (missing[1], missing[1])
        raise ImportError(f'expected all packages that this model needs, found no `{name}`: '
                          f'pip install {package}') from error
    built.train(False)
    tell_other_sizes(built)
    return built


def load_weights(model: nn.Module, path: str | Path) -> dict[str, Any]:
    """Load the task model's weights of any checkpoint, which is returned, by :func:`.load_task`."""
    checkpoint = read_checkpoint(path)
    load_task(model, weights_of(checkpoint, model, str(path)), str(path))
    return checkpoint


def load_config(path: str | Path, options: Mapping[str, Any] | None = None,
                compressed: bool = True) -> Config:
    """Read a config, and take options into it.

    Args:
        path (str | Path): See :func:`read_config`.
        options (Mapping, optional): See :func:`take_options`. Defaults to None.
        compressed (bool): Whether ``compression``, if there is one, is expanded. Defaults to True.

    Raises:
        FileNotFoundError, ValueError: As ``read_config`` and ``take_options``.
    """
    config = read_config(path)
    if options:
        take_options(config, options)
        drop_idle_workers(config)
    return expand_compression(config) if compressed else config


#: What a config may have although it has it not, beside a variable of any other name.
_ENTRIES = {*inspect.signature(Runner.__init__).parameters, 'auto_scale_lr', 'compression',
            'custom_imports', 'expected', 'find_unused_parameters', 'model_wrapper_cfg',
            'runner_type', 'tta_model', 'tta_pipeline'}


def take_options(config: Config, options: Mapping[str, Any]) -> None:
    """Overwrite entries, by dotted path as ``--cfg-options``, in place; refuse slips.

    MMEngine would add a path that begins almost as an entry of the config does.
    """
    known = {*config, *_ENTRIES}
    for first in {path.split('.')[0] for path in options} - known:
        if near := did_you_mean(first, sorted(known), 0.8):
            raise ValueError(f'expected an entry of the config in `--cfg-options`, found `{first}`'
                             f'{near}')
    config.merge_from_dict(dict(options))


def drop_idle_workers(config: Config) -> None:
    """Make ``num_workers=0`` sufficient, in place: without workers none can be persistent."""
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = config.get(name)
        if isinstance(loader, Mapping) and not loader.get('num_workers'):
            loader.update(persistent_workers=False)


def run_folder(config: Config, name: str | Path) -> Path:
    """The config's ``work_dir``, else ``work_dirs/<config's name>``, if it can be written."""
    folder = Path(config.get('work_dir') or Path('work_dirs', Path(str(name)).stem))
    check_place(folder, '--out')
    return folder


def default_shape(config: Config, model: nn.Module,
                  given: Sequence[int] | None = None) -> tuple[int, int, int]:
    """The (C, H, W) at which a model's MACs are counted; channels are always the config's.

    It is the price's ``input_shape`` of a search, else see
    :func:`~mmkcr.engine.compressed_config.image_size`.

    Args:
        config (Config): Of the model.
        model (nn.Module): Built from the config.
        given (Sequence[int], optional): (C, H, W), or (H, W), whose height and width a user gave.
            Defaults to None: those of the config.
    """
    if given is not None:
        return default_shape(config, model)[0], *given[-2:]
    priced = getattr(getattr(model, 'price', None), 'input_shape', None)
    if priced is not None:
        return tuple(priced)
    task = getattr(model, 'architecture', model)
    # of a class of one's own the library that it comes from
    libraries = (cls.__module__.split('.')[0] for cls in type(task).__mro__)
    scope = next((name for name in libraries if name in ('mmpretrain', 'mmdet', 'mmseg')), None)
    return image_size(config, scope)


def set_structure(config: Config, structure: str) -> None:
    """Put a structure file into the config, see :func:`backbone_config`."""
    backbone_config(config)['structure'] = structure


def backbone_config(config: Config) -> Mapping[str, Any]:
    """The part of a config that takes ``gates`` or a ``structure``, also inside our wrappers.

    This is the backbone, or the ``mmkcr.Searchable`` around a whole model; empty if there is none.
    """
    model = task_config(config)
    return model if model.get('type') == 'mmkcr.Searchable' else model.get('backbone') or {}


def check_expected(config: Mapping[str, Any], metrics: Mapping[str, float]) -> list[str]:
    """One sentence for every metric that differs from what a config expects.

    The config holds value and tolerance of each metric under ``expected``.
    """
    return [f'expected `{name}` of {value} +/- {tolerance}, found {metrics.get(name)}'
            for name, (value, tolerance) in (config.get('expected') or {}).items()
            # not <=: also for nan
            if not abs(metrics.get(name, float('nan')) - value) <= tolerance]


def find_weights(config: Config, given: str | None, what: str) -> str:
    """The checkpoint of a command that needs a trained network: the given one, or the config's.

    The config's checkpoint is ``load_from``, or the ``weights`` of its ``compression``. Errors name
    the config as ``what``.
    """
    path = given or config.get('load_from') or (config.get('compression') or {}).get('weights')
    if not path:
        raise ValueError(f'expected a checkpoint, or a config with `load_from`, found `{what}` '
                         'without: its network would be untrained')
    return str(path)


def dense_config(config: Config) -> Config:
    """A copy of a config with the bare task model alone, in the dense state.

    Raises:
        ValueError: The config has no model with a backbone.
    """
    config = copy.deepcopy(config)
    model = task_config(config) if config.get('model') else {}
    if 'backbone' not in model:
        raise ValueError('expected a config with a `model` that has a `backbone`, found the keys '
                         f'{sorted((model or config).keys())}')
    config.model = model
    for state in ('gates', 'structure'):
        backbone_config(config).pop(state, None)
    return config
