"""Compressing from files to files: what ``tools/compress.py`` does."""

import copy
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from mmengine.config import Config
from torch import nn

from mmkcr.apis.slim_files import (
    STRUCTURE,
    WEIGHTS,
    SubnetFiles,
    provenance,
    write_subnet,
    written_files,
)
from mmkcr.apis.subnet_configs import CONFIG, searched_config, write_config
from mmkcr.closed_form.compression import CompressResult, compress
from mmkcr.closed_form.distil import DistilResult, distil
from mmkcr.closed_form.images import calibration_images
from mmkcr.closed_form.options import CompressOptions, SiteProfile
from mmkcr.closed_form.progress import CompressProgress, kept_profiles
from mmkcr.closed_form.refit_structure import refit_structure
from mmkcr.closed_form.survey import Survey, survey
from mmkcr.core import Structure, atomic_write
from mmkcr.deploy.int8 import DeployedFile, deploy_int8
from mmkcr.deploy.latency_table import usable_table
from mmkcr.engine.build import (
    build_model,
    default_shape,
    file_sha256,
    load_config,
    load_weights,
    run_folder,
)
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
SENSITIVITY, PROGRESS = 'sensitivity.json', '.progress'


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
                   profiles: str | Path | None = None,
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
        profiles (str | Path, optional): Folder of an earlier call whose profiles are used. Defaults
            to None: those in the task's, if they are of this network, these images and sites.
        later (Mapping, optional): Steps that follow, such as fine-tuning; empty for those that
            write nothing, such as evaluation. Until they are done the progress stays, so that a
            repeated call finds the compression finished. Defaults to None: there are none.
        **settings: See :class:`~mmkcr.closed_form.options.CompressOptions`.

    Raises:
        ImportError: The runtime of ``latency`` is missing.
        ValueError: As in ``compress``. Nothing is written then.
    """
    table = None if latency is None else usable_table(latency, dict(
        input_shape=list(task.input_shape), part=task.part), force_latency)
    kept = kept_profiles(task.folder, dict(task.key, digest=task.batches.digest()), sites, settings,
                         profiles)
    known = kept.profiles()
    asked = dict(sites=sites, target=target, cost=cost,
                 latency=None if latency is None else file_sha256(latency))
    files = _written(task, partial(
        compress, task.model, task.batches, target, sites, latency=table, scope=task.scope,
        cost=cost, ordinary=False, forward=task_outputs if task.scope == 'backbone' else None),
        asked, later, settings, kept)
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
    task = task._replace(provenance=dict(task.provenance, structure=Path(structure).name))
    return _written(task, partial(refit_structure, task.model, wanted, task.batches,
                                  forward=task_outputs),
                    dict(structure=wanted.to_dict()), later, settings)


def _written(task: CompressTask, run: Callable[..., CompressResult], asked: dict[str, Any],
             later: Mapping[str, Any] | None, settings: Mapping[str, Any],
             kept: CompressProgress | None = None) -> SubnetFiles:
    """Run a compression, or go on with it, and write structure, weights, config, sensitivity."""
    done = CompressProgress(task.folder / PROGRESS, dict(
        task.key, settings=settings, later=later, **asked), kept)
    try:
        result = run(input_shape=task.input_shape, part=task.part, done=done,
                     logits=task.classifies, **settings)
    except ValueError:  # refused arguments leave nothing to continue
        for progress in filter(None, (done, kept)):
            progress.withdraw()
        raise
    structure = result.structure
    # the config in place of the class name, so that the structure alone builds the backbone
    structure.backbone['backbone'] = searched_config(task.config, task.scope)
    structure.provenance = dict(task.provenance, **structure.provenance,
                                agreement=result.agreement)
    write_subnet(result.model, structure, task.meta, task.folder)
    write_config(task.config, task.scope, task.folder, structure.backbone)
    if result.profiles:
        write_sensitivity(result.profiles, task.folder / SENSITIVITY)
    if later is None:
        done.remove()
    return written_files(task.model, result.model, structure, task.folder)._replace(progress=done)


def distil_files(task: CompressTask, folder: str | Path, length: str | int) -> DistilResult:
    """Distil the network in a folder of ``mmkcr compress`` and write it in its place.

    Classifiers and segmentors agree on their scores, detectors on the features that their heads
    read. A call that was killed goes on if it is repeated.

    Args:
        task (CompressTask): With the dense model and the images.
        folder (str | Path): Folder of the compressed network.
        length (str | int): See :func:`~mmkcr.closed_form.distil.distil`.
    """
    folder = Path(folder)
    student = build_model(load_config(folder / CONFIG))
    meta = load_weights(student, folder / WEIGHTS).get('meta') or {}
    result = distil(student, task.model, task.batches, length, task_outputs,
                    logits=task.classifies, work_dir=folder / 'distil')
    structure = Structure.load(folder / STRUCTURE)
    structure.provenance['distil'] = dict(
        length=str(length), steps=result.steps, best=result.best, before=result.errors[0],
        after=result.errors[result.best])
    write_subnet(result.model, structure, meta, folder)
    (folder / 'distil/last_checkpoint').unlink()  # the next call begins with what this one wrote
    return result


def int8_files(task: CompressTask, slim: nn.Module, folder: Path,
               runtime: str) -> list[DeployedFile]:
    """Write fp32 and int8 files of both networks, see :func:`~mmkcr.deploy.int8.deploy_int8`.

    They are calibrated on the calibration images except the last tenth, which compares outputs.
    """
    images = [batch['inputs'].cpu() for batch in task.batches]
    # the files take images of one size
    size = images[0].shape[-2:]
    images = [(one if one.shape[-2:] == size else F.interpolate(one, size, mode='bilinear')).numpy()
              for one in images]
    count = max(1, len(images) // 10)
    return deploy_int8(copy.deepcopy(task.model).cpu(), slim.cpu(), images[:-count] or images,
                       images[-count:], folder, runtime)


def write_sensitivity(profiles: Mapping[str, SiteProfile], path: Path) -> None:
    """Write the order of every site's units, and the losses at its sizes."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({name: dict(
            order=profile.order.tolist(), losses=profile.losses.tolist())
            for name, profile in profiles.items()}) + '\n')
