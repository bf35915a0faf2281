"""Models from configs and checkpoints, for the commands: no data set, no runner."""

import hashlib
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner.checkpoint import CheckpointLoader
from torch import nn

_NO_OPS = ("expected mmcv's compiled operators for this model, found an mmcv without them: get "
           'them with `pip install --no-cache-dir --force-reinstall --no-deps --no-build-isolation '
           'onedl-mmcv` (about 10 minutes)')


def load_config(path: Union[str, Path], options: Optional[Mapping[str, Any]] = None) -> Config:
    """Read a config file, or a config of an installed library by reference.

    Args:
        path (str | Path): A file, or ``library::path`` such as
            ``mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py``.
        options (dict, optional): Entries to overwrite, as ``--cfg-options``.

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
    return config


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
    """Load a checkpoint strictly.

    In a checkpoint that was written beside MMEngine's ``EMAHook``, ``state_dict``
    holds the averaged weights and ``ema_state_dict`` those that the optimizer
    works on: the hook swaps the two when it saves.

    Args:
        model (nn.Module): A model as its config builds it.
        path (str | Path): The checkpoint.
        online (bool): Take the weights of the optimizer, not their average.
            Defaults to False.

    Returns:
        dict: The checkpoint.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, is one of another model, has none of
            the model's gates, or has no average beside the weights although
            ``online`` asks for the latter.
    """
    checkpoint = read_checkpoint(path)
    state = _state(checkpoint, path, online)
    if _has_gates(model.state_dict()) and not _has_gates(state):
        raise ValueError(f'expected a checkpoint of a search, as the config is one, found `{path}` '
                         'without gates')
    try:
        model.load_state_dict(state, strict=True)
    except (RuntimeError, ValueError) as error:
        text = ' '.join(str(error).split()).replace('Error(s) in loading state_dict for ', '')
        raise ValueError(f'expected a checkpoint of the `{_name(model)}` of the config, found '
                         f'`{path}` of another ({text[:400]})') from error
    return checkpoint


def read_checkpoint(path: Union[str, Path]) -> Dict[str, Any]:
    """Read a checkpoint to the CPU.

    Args:
        path (str | Path): A file or URL.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint.
    """
    if '://' not in str(path) and not Path(path).expanduser().is_file():
        raise FileNotFoundError(f'expected a checkpoint at `{path}`, found none')
    try:
        checkpoint = CheckpointLoader.load_checkpoint(str(path), map_location='cpu')
    except Exception as error:  # pickle, zip and torch each have their own
        raise ValueError(f'expected a checkpoint at `{path}`, found a file that cannot be read '
                         f'({type(error).__name__})') from error
    if not isinstance(checkpoint, Mapping):
        raise ValueError(f'expected a checkpoint with a `state_dict` at `{path}`, found a '
                         f'`{type(checkpoint).__name__}`')
    return checkpoint


def _state(checkpoint: Mapping[str, Any], path: Union[str, Path], online: bool) -> Dict[str, Any]:
    if not online:
        return checkpoint.get('state_dict', checkpoint)
    if 'ema_state_dict' not in checkpoint:
        raise ValueError('expected a checkpoint with averaged and online weights (`EMAHook`), '
                         f'found `{path}` without `ema_state_dict`')
    return {key[len('module.'):]: value for key, value in checkpoint['ema_state_dict'].items()
            if key.startswith('module.')}


def _has_gates(state: Mapping[str, Any]) -> bool:
    return any('.gate.' in key for key in state)


def _name(model: nn.Module) -> str:
    return type(getattr(model, 'architecture', model)).__name__


def default_shape(config: Config, model: nn.Module) -> Tuple[int, int, int]:
    """The image that a model's MACs are counted for unless the user says.

    Args:
        config (Config): Its config.
        model (nn.Module): The built model.

    Returns:
        tuple[int, int, int]: (C, H, W): the price's ``input_shape`` of a
        search; for mmdet what the test images are resized to, at most 3 x 800 x 1280;
        the data preprocessor's ``size`` or 3 x 512 x 512 for mmseg; the
        backbone's ``img_size`` or 3 x 224 x 224.
    """
    priced = getattr(getattr(model, 'price', None), 'input_shape', None)
    if priced is not None:
        return tuple(priced)
    task = getattr(model, 'architecture', model)
    scope = type(task).__module__.split('.')[0]
    size: Any = None
    if scope == 'mmdet':
        size = min((800, 1280), *_resize_scales(config))
    elif scope == 'mmseg':
        size = getattr(task.data_preprocessor, 'size', None) or (512, 512)
    else:
        cfg = config.model.get('architecture', config.model)
        size = dict(cfg.get('backbone') or cfg).get('img_size', 224)
    height, width = (size, size) if isinstance(size, int) else size
    return 3, int(height), int(width)


def _resize_scales(config: Config) -> List[Tuple[int, int]]:
    """(H, W) of the ``Resize`` of the test images, at most one."""
    pipeline = ((config.get('test_dataloader') or {}).get('dataset') or {}).get('pipeline') or []
    return [tuple(step['scale'][::-1]) for step in pipeline if step['type'] == 'Resize'][:1]


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
