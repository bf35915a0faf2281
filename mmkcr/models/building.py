"""Models from configs and checkpoints: no data set, no runner."""

import copy
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmkcr.core.checks import did_you_mean
from mmkcr.hosts import TRANSFORMERS_4, ensure_torchvision, prepare_hosts
from mmkcr.safe_load import is_trusted, read_checkpoint
from .counting import tell_other_sizes
from .loading import load_task, weights_of

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
        FileNotFoundError: There is no such config.
        ValueError: The file is no config.
    """
    prepare_hosts()
    file = Path(_resolve(str(path)))
    if not file.is_file():
        others = [str(file.with_name(other.name)) for other in file.parent.glob('*.py')]
        raise FileNotFoundError(f'expected a config file at `{path}`, found none'
                                f'{did_you_mean(str(file), others)}')
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
        text = ' '.join(str(error).split())
        raise ValueError(f'expected a config at `{path}`, found one that cannot be read '
                         f'({type(error).__name__}: {text:.200})') from error
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
                         f'(`library::path`), found `{path}`: compress networks of timm and '
                         "transformers in Python, `mmkcr.compress(model, images, '60%')`")
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
        ValueError: The config has no ``model``, or that is not what its structure file says.
    """
    if not isinstance(config.get('model'), Mapping):
        raise ValueError('expected a config with a `model`, found the keys '
                         f'{sorted(config.keys())}')
    prepare_hosts()
    ensure_torchvision()
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
            f'expected all files that a `{model.get("type")}` needs, found that one is missing: '
            f'{" ".join(str(error).split()):.300}') from error
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
