"""Models from configs and checkpoints, for the commands: no data set, no runner."""

import copy
import hashlib
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from mmkcr.engine.compressed_config import compressed_config, image_size
from mmkcr.models.loading import load_task, weights_of
from mmkcr.safe_load import read_checkpoint

_NO_OPS = ("expected mmcv's compiled operators for this model, found an mmcv without them: get "
           'them with `pip install --no-cache-dir --force-reinstall --no-deps --no-build-isolation '
           'onedl-mmcv` (about 10 minutes)')


def load_config(path: Union[str, Path], options: Optional[Mapping[str, Any]] = None,
                compressed: bool = True) -> Config:
    """Read a config file, or a config of an installed library by reference.

    Args:
        path (str | Path): A file, or ``library::path`` such as
            ``mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py``.
        options (dict, optional): Entries to overwrite, as ``--cfg-options``.
        compressed (bool): Give the config that its ``compression`` stands for, if it has one.
            Defaults to True.

    Raises:
        FileNotFoundError: There is no such config.
        ValueError: The file is no config.
    """
    file = Path(_resolve(str(path)))
    if not file.is_file():
        raise FileNotFoundError(f'expected a config file at `{path}`, found none')
    if file.suffix not in ('.py', '.json', '.yaml', '.yml'):
        raise ValueError(f'expected a config file (.py, .json or .yaml), found `{path}`')
    config = Config.fromfile(file)
    if options:
        config.merge_from_dict(dict(options))
        drop_idle_workers(config)
    return compressed_config(config) if compressed else config


def drop_idle_workers(config: Config) -> None:
    """Let ``num_workers=0`` be said alone: without workers there are none to keep.

    Args:
        config (Config): Changed in place.
    """
    for name in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        loader = config.get(name)
        if isinstance(loader, Mapping) and not loader.get('num_workers'):
            loader.update(persistent_workers=False)


def _resolve(path: str) -> str:
    if '::' not in path:
        return path
    try:
        return Config._get_cfg_path(path, '')[0]
    except (AssertionError, ImportError, FileNotFoundError, ValueError) as error:
        raise FileNotFoundError(f'expected a config of an installed library (`library::path`), '
                                f'found `{path}` ({error})') from error


def build_model(config: Config) -> nn.Module:
    """Build the model of a config as a Runner would, on the CPU.

    Weights are random: nothing is downloaded, ``init_cfg`` is not applied.

    Args:
        config (Config): Of mmpretrain, mmdet, mmseg or this package.

    Returns:
        nn.Module: In eval mode.

    Raises:
        ValueError: The config has no ``model``.
        ImportError: The model needs mmcv's compiled operators, which are not
            there.
    """
    if not isinstance(config.get('model'), Mapping):
        raise ValueError('expected a config with a `model`, found the keys '
                         f'{sorted(config.keys())}')
    init_default_scope(config.get('default_scope', 'mmengine'))
    model = dict(config.model)
    if config.get('data_preprocessor') is not None:
        model.setdefault('data_preprocessor', config.data_preprocessor)
    try:
        built = MODELS.build(model)
    except ImportError as error:
        if 'mmcv._ext' not in str(error):
            raise
        raise ImportError(_NO_OPS) from error
    built.train(False)
    return built


def load_weights(model: nn.Module, path: Union[str, Path], online: bool = False) -> Dict[str, Any]:
    """Load the task model's weights of any checkpoint: searched, retrained or published.

    Args:
        model (nn.Module): A model as its config builds it.
        path (str | Path): The checkpoint.
        online (bool): See :func:`~mmkcr.models.loading.weights_of`. Defaults to False.

    Returns:
        dict: The checkpoint.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, or one that does not fit, see
            :func:`~mmkcr.models.loading.load_task`.
    """
    checkpoint = read_checkpoint(path)
    load_task(model, weights_of(checkpoint, str(path), online), str(path))
    return checkpoint


def default_shape(config: Config, model: nn.Module) -> Tuple[int, int, int]:
    """The image that a model's MACs are counted for unless the user says.

    Args:
        config (Config): Its config.
        model (nn.Module): The built model.

    Returns:
        tuple[int, int, int]: (C, H, W): the price's ``input_shape`` of a search, else see
        :func:`~mmkcr.engine.compressed_config.image_size`.
    """
    priced = getattr(getattr(model, 'price', None), 'input_shape', None)
    if priced is not None:
        return tuple(priced)
    task = getattr(model, 'architecture', model)
    return image_size(config, type(task).__module__.split('.')[0])


def image_shape(shape: Sequence[int]) -> Tuple[int, int, int]:
    """(3, H, W) of a command's ``--shape``, which is H and W or one number for both.

    Raises:
        ValueError: Not one or two positive numbers.
    """
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise ValueError('expected `--shape` of one or two positive numbers, found '
                         f'{" ".join(map(str, shape))}')
    return 3, shape[0], shape[-1]


def set_structure(config: Config, structure: str) -> None:
    """Put a structure file into the config's backbone, bare or inside our wrappers."""
    model = config.model
    while 'architecture' in model:
        model = model.architecture
    model.backbone.structure = structure


def file_sha256(path: Union[str, Path]) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def state_bytes(model: nn.Module) -> int:
    """Bytes of a model's state_dict, without what a file adds."""
    return sum(value.numel() * value.element_size() for value in model.state_dict().values()
               if isinstance(value, torch.Tensor))


def dense_config(config: Config) -> Config:
    """The bare task model of a search, retraining or deployment, in the dense state.

    Args:
        config (Config): With a ``model``; it is left as it is.

    Raises:
        ValueError: There is no ``model`` with a ``backbone``.
    """
    config = copy.deepcopy(config)
    model = config.get('model')
    while isinstance(model, Mapping) and 'architecture' in model:
        model = model.architecture
    if not isinstance(model, Mapping) or 'backbone' not in model:
        raise ValueError('expected a config with a `model` that has a `backbone`, found the keys '
                         f'{sorted((model or config).keys())}')
    for state in ('gates', 'structure'):
        model.backbone.pop(state, None)
    config.model = model
    return config


def recorded_config(path: Union[str, Path]) -> Config:
    """The config that a checkpoint of MMEngine was trained with.

    Args:
        path (str | Path): The checkpoint.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, or one without a config.
    """
    text = (read_checkpoint(path).get('meta') or {}).get('cfg')
    if not isinstance(text, str):
        raise ValueError(f'expected a checkpoint with the config of its training, found `{path}` '
                         'without: give the config')
    return compressed_config(Config.fromstring(text, '.py'))
