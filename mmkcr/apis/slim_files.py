"""Slimming from files to files, and the files of a subnet: weights, structure and configs."""

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import mmengine
import torch
from mmengine.config import Config, ConfigDict
from torch import nn

from mmkcr.closed_form.progress import CompressProgress
from mmkcr.core import Structure, atomic_write, remove_stale, write_tensors
from mmkcr.core.file_names import CONFIG, FINETUNE, STRUCTURE, SUBNET, TEACHER
from mmkcr.core.io import file_sha256
from mmkcr.deploy.latency_table import usable_table
from mmkcr.engine.build import (
    backbone_config,
    build_model,
    default_shape,
    load_config,
    load_weights,
    run_folder,
)
from mmkcr.engine.compressed_config import add_scope, run_length, task_config, with_import
from mmkcr.engine.schedule import scale_rates, stretch_schedule
from mmkcr.methods.search.slimming import slim
from mmkcr.models.backbone_loading import content_sha256
from mmkcr.models.counting import Parts, both_parts
from mmkcr.models.tasks import search_space
from mmkcr.safe_load import is_address
from mmkcr.version import __version__

#: Factor of a fine-tuning's learning rates: at the full rates a good network forgets.
RATE = 0.1


@dataclass(frozen=True)
class SubnetFiles:
    """Result of :func:`slim_files` or :func:`~mmkcr.apis.compress_files.compress_files`.

    Args:
        dense (nn.Module): The bare dense task model.
        slim (nn.Module): The bare task model with the subnet.
        structure (Structure): Kept units of the subnet, with provenance.
        folder (Path): Folder with the files of the subnet.
        progress (CompressProgress, optional): The caller removes it after the later steps.
            Defaults to None.
        notes (list[str]): Sentences for the user. Defaults to none.
    """

    dense: nn.Module
    slim: nn.Module
    structure: Structure
    folder: Path
    progress: CompressProgress | None = None
    notes: list[str] = field(default_factory=list)

    @cached_property
    def parts(self) -> Parts:
        """MACs by part of a detector or segmentor, counted when first asked for; empty for others.
        """
        return both_parts(self.dense, self.slim, self.structure.macs['input_shape'])


def slim_files(config: str | Path, checkpoint: str | Path,
               target_macs: str | int | float | None = None, divisor: int = 1,
               shape: Sequence[int] | None = None, out: str | Path | None = None,
               options: Mapping[str, Any] | None = None, part: str | None = None,
               latency: str | Path | None = None, force_latency: bool = False,
               cost: str = 'macs') -> SubnetFiles:
    """Slim a trained supernet and write the subnet.

    Two files are written, both or, on any error, neither: ``structure.json``, and ``subnet.pth``
    with the ``state_dict`` of the bare task model (weights inherited) and a ``meta``.

    Args:
        config (str | Path): Config of the search, a file or library::path.
        checkpoint (str | Path): Checkpoint of the search, a file or an address.
        target_macs (str | int | float, optional): Most of ``cost``, an amount or a share of the
            dense network's; with a table of latencies a time. Defaults to None: the units whose
            gates are open.
        divisor (int): Sizes are multiples of it, or full. Defaults to 1.
        shape (Sequence[int], optional): (C, H, W) that costs are counted for. Defaults to None: the
            size of the config.
        out (str | Path, optional): Folder to write to. Defaults to None: ``slim`` in the work
            directory of the config.
        options (dict, optional): Entries of the config to overwrite, by dotted path. Defaults to
            None.
        part (str, optional): ``'model'`` or ``'backbone'``, which the target counts. Defaults to
            None: the part that the price of the config counts.
        latency (str | Path, optional): File of a table of latencies. Defaults to None.
        force_latency (bool): Take a table of another machine. Defaults to False.
        cost (str): ``'macs'``, ``'params'`` or ``'bytes'``. Defaults to ``'macs'``.

    Raises:
        ValueError: A config without gates, a checkpoint of another network, an unreachable target,
            or a table of other conditions.
    """
    cfg = load_config(config, options)
    model = build_model(cfg)
    if not search_space(model).gates():
        raise ValueError(f'expected the config of a search (a backbone with `gates`), found '
                         f'`{config}` without')
    content = load_weights(model, checkpoint)
    shape = default_shape(cfg, model, shape)
    table = None if latency is None else usable_table(latency, dict(input_shape=list(shape)),
                                                      force_latency)
    subnet, structure = slim(model, target_macs, divisor, shape, part, table, cost, ordinary=False)
    structure.provenance = {**structure.provenance, **provenance(cfg, config, checkpoint, content)}
    # what the search began with: dense, or a subnet
    start = copy.deepcopy(cfg)
    start.model = task_config(start)
    backbone_config(start).pop('gates', None)
    folder = Path(out) if out else run_folder(cfg, config) / 'slim'
    write_subnet(subnet, structure, content.get('meta') or {}, folder)
    return SubnetFiles(build_model(start), subnet, structure, folder)


def provenance(cfg: Config, config: str | Path, checkpoint: str | Path,
               content: Mapping[str, Any]) -> dict[str, Any]:
    """Provenance of a subnet, in JSON types.

    Args:
        cfg (Config): Config of the run that trained the checkpoint, read.
        config (str | Path): Its file or library::path.
        checkpoint (str | Path): A file or an address; an address has no hash.
        content (Mapping): Entries of the checkpoint; ``meta`` has seed, epoch and iteration.
    """
    meta = content.get('meta') or {}
    seed = (cfg.get('randomness') or {}).get('seed')
    if seed is None:
        seed = meta.get('seed')
    sha256 = None if is_address(checkpoint) else file_sha256(checkpoint)
    return dict(
        config=relative(config),
        checkpoint=Path(checkpoint).name,
        checkpoint_sha256=sha256,
        weights='averaged' if 'ema_state_dict' in content else 'plain',
        seed=seed,
        epoch=meta.get('epoch'),
        iter=meta.get('iter'),
        versions=dict(torch=str(torch.__version__), mmengine=mmengine.__version__,
                      mmkcr=__version__))


def relative(path: str | Path) -> str:
    """A path below the working directory relative to it, a reference unchanged, else a name."""
    if '::' in str(path):
        return str(path)
    full = Path(path).resolve()
    return str(full.relative_to(Path.cwd())) if full.is_relative_to(Path.cwd()) else full.name


def subnet_name(structure: Structure) -> str | None:
    """Name of a subnet by its dense network's config, its method and its share of the MACs.

    It is None without the provenance that `slim` and `compress` write.
    """
    source, macs = structure.provenance.get('config'), structure.macs
    if source is None or not {'subnet', 'dense'} <= set(macs):
        return None
    method = (structure.method or 'slim').partition(':')[0]
    return (f'{Path(source.split("::")[-1]).stem}_{method}-'
            f'{100 * macs["subnet"] / macs["dense"]:.0f}')


def write_subnet(subnet: nn.Module, structure: Structure, meta: Mapping[str, Any],
                 folder: Path) -> None:
    """Write ``subnet.pth``, of a bare task model, and ``structure.json``, or neither.

    ``subnet.pth`` is renamed last, and decides: its readers compare the structure in it with the
    structure beside it. So two files of different calls never load together.

    Args:
        subnet (nn.Module): The bare task model.
        structure (Structure): Its kept units, with provenance.
        meta (Mapping): Metadata of the checkpoint that the subnet comes from.
        folder (Path): Folder to write to.
    """
    remove_stale(folder)  # half-written files of a killed call
    state = {name: value.detach().cpu().clone().contiguous()
             for name, value in subnet.state_dict().items()}
    kept = {key: meta[key] for key in ('dataset_meta', 'epoch', 'iter') if key in meta}
    # of plain values, as of the file: arguments of a backbone may be a config's
    kept.update(provenance=structure.provenance, structure=json.loads(structure.dumps()))
    content = dict(state_dict=state, meta=kept)
    kept['sha256'] = content_sha256(content)
    with atomic_write(folder / SUBNET) as weights:  # is renamed behind the structure
        write_tensors(content, weights)
        structure.save(folder / STRUCTURE)


def write_config(config: Config, scope: str, folder: Path, structure: Structure,
                 weights: str = SUBNET) -> None:
    """Write a dense config with the subnet as backbone or model, to start from its weights.

    Weights beside another config are removed first, as they belong to another network. Files are
    named relative to the config, so the folder can be moved.

    Args:
        config (Config): Config of the dense network.
        scope (str): ``'backbone'`` or ``'model'``: the part that is compressed.
        folder (Path): Folder to write to.
        structure (Structure): It gets the dense config in place of the class name, so that it
            alone builds the backbone.
        weights (str): Name of the file with the weights. Defaults to ``subnet.pth``.
    """
    # initial checkpoints of the dense model would be loaded over the subnet, or refused
    here, written = '{{ fileDirname }}', without_initial_weights(config)
    dense = written.model if scope == 'model' else written.model.backbone
    structure.backbone['backbone'] = add_scope(
        {key: value for key, value in dense.items() if key != 'init_cfg'}, config).to_dict()
    slim = ConfigDict(structure.backbone, structure=f'{here}/{STRUCTURE}')
    if scope == 'model':
        written.model = slim
    else:
        written.model.backbone = slim
    # a folder apart from other subnets, whose configs have the same name, and from the dense run's
    written.update(load_from=f'{here}/{weights}', work_dir=f'{here}/train', resume=False,
                   launcher='none', custom_imports=with_import(written))
    text = config_text(written)
    with atomic_write(folder / CONFIG) as path:
        path.write_text(text, encoding='utf8')
        if (folder / CONFIG).is_file() and (folder / CONFIG).read_text(encoding='utf8') != text:
            (folder / weights).unlink(missing_ok=True)  # of another network than the config's


def config_text(config: Config) -> str:
    """Write a config as Python that stays valid in a folder of any name.

    MMEngine puts the folder into the text where it reads a config, so a quote in its name would end
    an ordinary string.

    Args:
        config (Config): With ``{{ fileDirname }}`` at the beginning of paths beside it.
    """
    return re.sub(r"'(\{\{ fileDirname \}\}[^']*)'", r'r"""\1"""', config.pretty_text)


def write_finetune_config(dense: Config, checkpoint: str | Path, structure: Structure,
                          folder: Path, length: int) -> Path:
    """Write the config of a subnet's fine-tuning beside its files, and its teacher's config.

    The dense network teaches the features of its backbone, see
    :class:`mmkcr.FeatureDistillationLoss`.

    Args:
        dense (Config): Config of the dense network, with its training.
        checkpoint (str | Path): Weights of the dense network, a file or an address.
        structure (Structure): Kept units of the subnet.
        folder (Path): Folder with the files of the subnet; the configs are written into it.
        length (int): Epochs or iterations of the fine-tuning, see :func:`shorten_training`.

    Returns:
        Path: The config for ``mmkcr train``.
    """
    config = shorten_training(dense, length)
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
        weights=f'{here}/{SUBNET}', wrapper='mmkcr.RegularizedModel',
        regularizers=dict(teacher=dict(
            type='mmkcr.FeatureDistillationLoss', teacher=f'{here}/{TEACHER}',
            checkpoint=checkpoint)))
    # neither loads the checkpoints that the dense training once began with
    for name, content in ((TEACHER, dense), (FINETUNE, config)):
        content = without_initial_weights(content)
        with atomic_write(folder / name) as path:
            path.write_text(config_text(content), encoding='utf8')
    return folder / FINETUNE


def shorten_training(dense: Config, length: int) -> Config:
    """A copy of a training's config with another number of epochs, or of iterations.

    All parts of its schedule are scaled, and learning rates are multiplied by :data:`RATE`.
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
