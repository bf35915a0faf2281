"""Compressing from files to files: what ``tools/compress.py`` does."""

import copy
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.config import Config, ConfigDict
from torch import nn

from mmkcr.apis.finetune import without_initial_weights
from mmkcr.apis.slim_files import (
    STRUCTURE,
    WEIGHTS,
    SubnetFiles,
    provenance,
    write_subnet,
    written_files,
)
from mmkcr.closed_form.compression import CompressResult, compress, refit_structure
from mmkcr.closed_form.given import Survey, survey
from mmkcr.closed_form.images import calibration_images
from mmkcr.closed_form.options import CompressOptions, SiteProfile
from mmkcr.closed_form.progress import CompressProgress, kept_profiles
from mmkcr.core import Structure, atomic_write
from mmkcr.deploy.int8 import DeployedFile, deploy_int8, require_quantizer
from mmkcr.deploy.latency_table import usable_table
from mmkcr.engine.build import (
    build_model,
    default_shape,
    file_sha256,
    load_config,
    load_weights,
    run_folder,
)
from mmkcr.engine.compressed_config import scoped, with_import
from mmkcr.lazy import is_of
from mmkcr.models.tasks import (
    deciding_scores,
    find_task,
    is_dense_task,
    is_detector,
    tensor_outputs,
)
from mmkcr.version import __version__

#: Maximum number of calibration images by default.
MOST_IMAGES = 512
CONFIG, SENSITIVITY, PROGRESS = 'config.py', 'sensitivity.json', '.progress'


def task_outputs(model: nn.Module, batch: Any) -> Any:
    """Outputs of a task model that must agree: scores, score maps, or a detector's features.

    Args:
        model (nn.Module): A model of mmpretrain, mmdet or mmseg.
        batch (dict): A batch of its data preprocessor.
    """
    if is_detector(model):
        return model.extract_feat(batch['inputs'])
    return deciding_scores(model, tensor_outputs(model, batch['inputs'],
                                                 batch.get('data_samples')))


class CompressTask(NamedTuple):
    """A checkpoint to compress, with its images."""

    config: Config  # of the dense task model
    model: nn.Module  # with its weights
    meta: dict[str, Any]  # of the checkpoint
    batches: Sequence[Any]  # of calibration images
    input_shape: Sequence[int]  # (C, H, W) that MACs are counted for; of `part`
    part: str | None
    classifies: bool  # whether the outputs are class scores
    folder: Path  # to write to
    scope: str
    provenance: dict[str, Any]  # for the written files
    key: dict[str, Any]  # tasks with equal keys give the same result


def compress_task(config: str | Path, checkpoint: str | Path,
                  calibration: str | None = None, images: int | None = None,
                  shape: Sequence[int] | None = None, part: str | None = None,
                  out: str | Path | None = None, seed: int = 0, device: str = 'cpu',
                  options: Mapping[str, Any] | None = None,
                  scope: str = 'backbone') -> CompressTask:
    """Load the model to compress, its weights and its images; see ``mmkcr compress --help``."""
    cfg = load_config(config, options)
    model = build_model(cfg)
    if find_task(model) is not model or not hasattr(model, 'backbone'):
        raise ValueError(f'expected the config of an ordinary task model with a `backbone`, found '
                         f'`{type(model).__name__}` in `{config}`')
    content = load_weights(model, checkpoint)
    dense_task = is_dense_task(model)
    if scope == 'model' and not dense_task:
        raise ValueError("expected a detector or segmentor for the scope 'model', found "
                         f'`{type(model).__name__}`')
    if scope == 'model' and part == 'backbone':
        raise ValueError("expected a budget over the whole model for the scope 'model', found "
                         "that of the part 'backbone'")
    # heads of detectors cost what the proposals make them cost, so their budget is the backbone's
    part = 'model' if scope == 'model' else part or ('backbone' if dense_task else None)
    input_shape = shape or default_shape(cfg, model)
    model.to(device)
    batches = calibration_images(cfg, model, calibration, images or MOST_IMAGES, seed)
    if images is None:
        batches = batches[:enough_images(survey(model.eval(), batches, task_outputs, False), (
            model if scope == 'model' else model.backbone).modules())]
    folder = Path(out) if out else run_folder(cfg, config) / 'compress'
    head = getattr(model, 'head', None)  # scores of one set of classes: no features, no numbers
    classifies = is_of(head, 'mmpretrain.models.heads.ClsHead') and \
        not is_of(head, 'mmpretrain.models.heads.RegressionHead')
    origin = provenance(cfg, config, checkpoint, content)
    return CompressTask(
        cfg, model, content.get('meta') or {}, batches, input_shape, part, classifies, folder,
        scope,
        dict(origin, calibration=dict(
            images=batches.images, folder=calibration is not None, seed=seed)),
        dict(version=__version__, torch=torch.__version__, config=cfg.pretty_text,
             checkpoint=origin['checkpoint_sha256'] or str(checkpoint), calibration=calibration,
             images=images, shape=input_shape, part=part, seed=seed, scope=scope))


def searched_config(config: Config, scope: str) -> dict[str, Any]:
    """The part of a dense config that a structure is about, without initial weights."""
    searched = without_initial_weights(config).model
    searched = searched if scope == 'model' else searched.backbone
    return scoped({key: value for key, value in searched.items() if key != 'init_cfg'},
                  config).to_dict()


def enough_images(surveyed: Survey, layers: Iterable[nn.Module]) -> int:
    """Number of calibration images that refits need, with the tenth that is held out.

    They have 12 positions for each input of every layer with more than one an image, and as many
    pixels as 256 images of 224 x 224; there are at least 32 and at most 512 of them.
    """
    wide = [layer for layer in layers if surveyed.rows.get(layer, 0) > 1
            and getattr(layer, 'groups', 1) == 1]
    pixels = max((math.prod(size[-2:]) for size in surveyed.sizes), default=224**2)
    least = min(max(256 * 224**2 // pixels, 32), 256)
    needed = surveyed.needed(wide, max(CompressOptions.per_unit), least)
    return min(math.ceil(needed / 0.9), MOST_IMAGES)


def compress_files(task: CompressTask, target: str | int | float,
                   sites: Sequence[Any] | None = None, cost: str = 'macs',
                   latency: str | Path | None = None, force_latency: bool = False,
                   int8: str | None = None, profiles: str | Path | None = None,
                   later: Mapping[str, Any] | None = None, **settings: Any) -> SubnetFiles:
    """Compress a checkpoint; writes structure, weights, config and the sites' sensitivity.

    A call that was killed continues behind the last refitted block if it is repeated with
    the same arguments. The sites' profiles stay in the folder: with another target, cost or way of
    sharing it out, a later call begins from them. The written config is the given one with the
    subnet as its backbone: the hosts' tools and this package's tools take it without changes.

    Args:
        task (CompressTask): Config, checkpoint and images.
        target, sites, cost: See :func:`~mmkcr.closed_form.compression.compress`.
        latency (str | Path, optional): Table of latencies: ``target`` is a time, also with
            ``force_latency`` that of another machine. Defaults to None.
        int8 (str, optional): Also write fp32 and int8 files of both networks for this runtime, see
            :func:`~mmkcr.deploy.int8.deploy_int8`. Defaults to None.
        profiles (str | Path, optional): Folder of an earlier call whose profiles are used. Defaults
            to None: those in the task's, if they are of this network, these images and sites.
        later (Mapping, optional): Steps that follow, such as fine-tuning; empty for those that
            write nothing, such as evaluation. Until they are done the progress stays, so that a
            repeated call finds the compression finished. Defaults to None: there are none.
        **settings: See :class:`~mmkcr.closed_form.options.CompressOptions`.

    Raises:
        ImportError: The runtime of ``latency`` or ``int8`` is missing.
        ValueError: As in ``compress``. Nothing is written then.
    """
    if int8 is not None:
        require_quantizer(int8)
    table = None if latency is None else usable_table(latency, dict(
        input_shape=list(task.input_shape), part=task.part), force_latency)
    kept = kept_profiles(task.folder, dict(task.key, digest=task.batches.digest()), sites, settings,
                         profiles)
    known = kept.profiles()
    done = CompressProgress(task.folder / PROGRESS, dict(
        task.key, sites=sites, target=target, cost=cost, settings=settings, later=later,
        latency=None if latency is None else file_sha256(latency)), kept)
    try:
        result = compress(task.model, task.batches, target, sites, task.input_shape, task.part,
                          task_outputs if task.scope == 'backbone' else None, done=done,
                          latency=table, scope=task.scope, cost=cost, ordinary=False,
                          logits=task.classifies, **settings)
    except ValueError:  # refused arguments leave nothing to continue
        done.withdraw()
        kept.withdraw()
        raise
    files = _written(task, result, done, later, int8)
    if known:
        files.notes.append(f'Profiles of the sites are those of an earlier call, in {kept.folder}.')
    return files


def refit_files(task: CompressTask, structure: str | Path,
                later: Mapping[str, Any] | None = None, **settings: Any) -> SubnetFiles:
    """Refit a checkpoint to a structure, as :func:`compress_files` to a target.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: As in :func:`refit_structure`. Nothing is written then.
    """
    wanted = Structure.load(structure)
    done = CompressProgress(task.folder / PROGRESS, dict(
        task.key, structure=wanted.to_dict(), settings=settings, later=later))
    try:
        result = refit_structure(task.model, wanted, task.batches, task.input_shape, task.part,
                                 task_outputs, done=done, logits=task.classifies, **settings)
    except ValueError:  # refused arguments leave nothing to continue
        done.withdraw()
        raise
    result.structure.provenance['structure'] = Path(structure).name
    return _written(task, result, done, later)


def _written(task: CompressTask, result: CompressResult, done: CompressProgress,
             later: Mapping[str, Any] | None, int8: str | None = None) -> SubnetFiles:
    """Write structure, weights, config, sensitivity, and files for a runtime, of a result."""
    structure = result.structure
    # the config in place of the class name, so that the structure alone builds the backbone
    structure.backbone['backbone'] = searched_config(task.config, task.scope)
    structure.provenance = dict(task.provenance, **structure.provenance,
                                agreement=result.agreement)
    write_subnet(result.model, structure, task.meta, task.folder)
    write_config(task.config, task.scope, task.folder, structure.backbone)
    if result.profiles:
        write_sensitivity(result.profiles, task.folder / SENSITIVITY)
    files = written_files(task.model, result.model, structure, task.folder)._replace(
        progress=done, deployed=() if int8 is None else _int8_files(task, result.model, int8))
    if later is None:
        done.remove()
    return files


def _int8_files(task: CompressTask, slim: nn.Module, runtime: str) -> Sequence[DeployedFile]:
    """Files calibrated on the calibration images except the last tenth, which compares outputs."""
    images = [batch['inputs'].cpu() for batch in task.batches]
    # the files take images of one size
    size = images[0].shape[-2:]
    images = [(one if one.shape[-2:] == size else F.interpolate(one, size, mode='bilinear')).numpy()
              for one in images]
    count = max(1, len(images) // 10)
    return deploy_int8(copy.deepcopy(task.model).cpu(), slim.cpu(), images[:-count] or images,
                       images[-count:], task.folder, runtime)


def write_config(config: Config, scope: str, folder: Path, backbone: Mapping[str, Any],
                 weights: str = WEIGHTS) -> None:
    """Write a dense config with the subnet as backbone or model, to start from its weights.

    Files are named relative to the config, so the folder can be moved.

    Args:
        config, scope: Of the dense task model; ``'backbone'`` or ``'model'``.
        folder (Path): Holds structure and ``weights``.
        backbone (Mapping): Config of the backbone, or the whole model, without its structure.
    """
    # initial checkpoints of the dense model would be loaded over the subnet, or refused
    here, written = '{{ fileDirname }}', without_initial_weights(config)
    slim = ConfigDict(backbone, structure=f'{here}/{STRUCTURE}')
    if scope == 'model':
        written.model = slim
    else:
        written.model.backbone = slim
    written.load_from = f'{here}/{weights}'
    for key, value in (('resume', False), ('launcher', 'none')):  # of the dense model's run
        if key in written:
            written[key] = value
    # apart from other subnets, whose configs have the same name, and from the dense model's run
    written.work_dir = f'{here}/train'
    written.custom_imports = with_import(written)
    with atomic_write(folder / CONFIG) as path:
        path.write_text(written.pretty_text)


def write_sensitivity(profiles: Mapping[str, SiteProfile], path: Path) -> None:
    """Write the order of every site's units, and the losses at its sizes."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({name: dict(
            order=profile.order.tolist(), losses=profile.losses.tolist())
            for name, profile in profiles.items()}) + '\n')
