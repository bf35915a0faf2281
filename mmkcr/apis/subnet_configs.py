"""Configs beside a compressed network: an ordinary one, and one of its fine-tuning."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from mmkcr.apis.slim_files import STRUCTURE, WEIGHTS
from mmkcr.core import Structure, atomic_write
from mmkcr.engine.compressed_config import run_length, scoped, with_import
from mmkcr.engine.schedule import scale_rates, stretch_schedule
from mmkcr.safe_load import is_address

CONFIG, DENSE, FINETUNE = 'config.py', 'dense.py', 'finetune.py'
#: Learning rates of a fine-tuning over the schedule's: at full rates a good network forgets.
RATE = 0.1


def searched_config(config: Config, scope: str) -> dict[str, Any]:
    """The part of a dense config that a structure is about, without initial weights."""
    searched = without_initial_weights(config).model
    searched = searched if scope == 'model' else searched.backbone
    return scoped({key: value for key, value in searched.items() if key != 'init_cfg'},
                  config).to_dict()


def write_config(config: Config, scope: str, folder: Path, backbone: Mapping[str, Any],
                 weights: str = WEIGHTS) -> None:
    """Write a dense config with the subnet as backbone or model, to start from its weights.

    Files are named relative to the config, so the folder can be moved. ``backbone`` is the config
    of what ``scope`` names, without its structure.
    """
    # initial checkpoints of the dense model would be loaded over the subnet, or refused
    here, written = '{{ fileDirname }}', without_initial_weights(config)
    slim = ConfigDict(backbone, structure=f'{here}/{STRUCTURE}')
    if scope == 'model':
        written.model = slim
    else:
        written.model.backbone = slim
    # a folder apart from other subnets, whose configs have the same name, and from the dense run's
    written.update(load_from=f'{here}/{weights}', work_dir=f'{here}/train', resume=False,
                   launcher='none', custom_imports=with_import(written))
    with atomic_write(folder / CONFIG) as path:
        path.write_text(written.pretty_text)


def write_finetune_config(dense: Config, checkpoint: str | Path, structure: Structure,
                          folder: Path, length: int) -> Path:
    """Write the config of a subnet's fine-tuning beside its files, and that of its teacher.

    The dense network, with the weights of ``checkpoint``, teaches its backbone's features: see
    :class:`mmkcr.FeatureDistillationLoss`. For ``length`` see :func:`shortened`. ``mmkcr train``
    takes the config whose path is returned.
    """
    config = shortened(dense, length)
    here, checkpoint = '{{ fileDirname }}', str(checkpoint)
    if not is_address(checkpoint):
        checkpoint = str(Path(checkpoint).expanduser().resolve())
    config.runner_type = 'mmkcr.CompressionRunner'
    config.custom_imports = with_import(config)
    # weights to start from are those of `compression`
    config.load_from, config.resume = None, False
    config.compression = ConfigDict(
        scope='model' if structure.macs.get('part') == 'model' else 'backbone',
        sites=structure.backbone['sites'], structure=f'{here}/{STRUCTURE}',
        weights=f'{here}/{WEIGHTS}', wrapper='mmkcr.RegularizedModel',
        regularizers=dict(teacher=dict(
            type='mmkcr.FeatureDistillationLoss', teacher=f'{here}/{DENSE}',
            checkpoint=checkpoint)))
    # neither loads the checkpoints that the dense training once began with
    for name, content in ((DENSE, dense), (FINETUNE, config)):
        content = without_initial_weights(content)
        with atomic_write(folder / name) as path:
            path.write_text(content.pretty_text)
    return folder / FINETUNE


def shortened(dense: Config, length: int) -> Config:
    """A copy of a training's config with another number of epochs, or of iterations.

    All parts of its schedule are scaled, and learning rates are :data:`RATE` of the given ones.
    """
    before, by_epoch = run_length(dense)
    config = copy.deepcopy(dense)
    stretch_schedule(config, length / before)
    scale_rates(config, RATE)
    config.train_cfg['max_epochs' if by_epoch else 'max_iters'] = length
    # a short run must still validate, at its end
    config.train_cfg.val_interval = min(config.train_cfg.get('val_interval', 1), length)
    return config


def without_initial_weights(config: Config) -> Config:
    """A copy of a config whose model does not load an initial checkpoint."""
    config = copy.deepcopy(config)
    for part in (config.model, config.model.backbone):
        part.pop('pretrained', None)
        init = part.get('init_cfg')
        if isinstance(init, list):  # several initialisations, one after the other
            part.init_cfg = [each for each in init if 'checkpoint' not in each]
        elif init and 'checkpoint' in init:  # mmdet's PVT has one without `type`
            part.pop('init_cfg')
    return config
