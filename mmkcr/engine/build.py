"""Models from configs and checkpoints, for the commands: no data set, no runner."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn

# F401: what commands take from here as well
from mmkcr.core.checks import check_place, did_you_mean, image_shape  # noqa: F401
from mmkcr.core.io import file_sha256  # noqa: F401
from mmkcr.core.products import state_bytes  # noqa: F401
from mmkcr.engine.compressed_config import compressed_config, image_size, task_config
from mmkcr.models.building import build_model, load_weights, read_config  # noqa: F401


def load_config(path: str | Path, options: Mapping[str, Any] | None = None,
                compressed: bool = True) -> Config:
    """Read a config, and take options into it.

    Args:
        path (str | Path): See :func:`~mmkcr.models.building.read_config`.
        options (Mapping, optional): See :func:`take_options`. Defaults to None.
        compressed (bool): Whether ``compression``, if there is one, is expanded. Defaults to True.

    Raises:
        FileNotFoundError, ValueError: As ``read_config`` and ``take_options``.
    """
    config = read_config(path)
    if options:
        take_options(config, options)
        drop_idle_workers(config)
    return compressed_config(config) if compressed else config


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


def trained_weights(config: Config, given: str | None, what: str) -> str:
    """The checkpoint of a command that needs a trained network: the given one, or the config's.

    Of the config, which errors name as ``what``, it is ``load_from``, or the ``weights`` of its
    ``compression``.
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
