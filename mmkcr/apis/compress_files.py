"""Compressing from files to files, for ``mmkcr compress``."""

import copy
import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from torch import nn

from mmkcr.apis.file_options import FileOptions
from mmkcr.apis.slim_files import (
    SubnetFiles,
    provenance,
    write_config,
    write_subnet,
)
from mmkcr.closed_form.compression import CompressResult, compress_network, refit_structure
from mmkcr.closed_form.images import CalibrationImages, calibration_images
from mmkcr.closed_form.options import (
    SiteProfile,
    check_divisor,
    open_search_space,
)
from mmkcr.closed_form.progress import CompressProgress, open_profiles
from mmkcr.closed_form.whole import HeldBatches, whole_outputs
from mmkcr.core import Structure, atomic_write
from mmkcr.core.file_names import CONFIG, STRUCTURE, SUBNET
from mmkcr.core.processes import find_rank
from mmkcr.deploy.file_bench import DeployedFile, FileBench
from mmkcr.deploy.latency_table import usable_table
from mmkcr.distillation import DistilResult, check_length, distil
from mmkcr.distillation.run import FOLDER as DISTIL_FOLDER
from mmkcr.engine.build import build_model, default_shape, load_config, load_weights, run_folder
from mmkcr.lazy import is_of
from mmkcr.models import tasks
from mmkcr.version import __version__

#: Maximum number of images that int8 files are calibrated and compared on.
INT8_IMAGES = 256
SENSITIVITY, PROGRESS = 'sensitivity.json', '.progress'


def task_outputs(model: nn.Module, batch: Any) -> Any:
    """Outputs of a task model that must agree: scores, score maps, or a detector's features."""
    if tasks.is_detector(model):
        return model.extract_feat(batch['inputs'])
    return tasks.deciding_scores(model, tasks.tensor_outputs(
        model, batch['inputs'], batch.get('data_samples')))


@dataclass(frozen=True)
class CompressTask:
    """A dense network with its images, see :func:`build_task`.

    Args:
        options (FileOptions): Options without gaps: ``part``, ``input_shape`` and ``logits`` have
            the values of the config.
        config (Config): Of the dense network.
        model (nn.Module): The dense network, on its device.
        meta (dict): Of its checkpoint.
        batches (CalibrationImages): Its images.
        folder (Path): Where files are written.
        provenance (dict): Of config, checkpoint and images, in JSON types.
    """

    options: FileOptions
    config: Config
    model: nn.Module
    meta: dict[str, Any]
    batches: CalibrationImages
    folder: Path
    provenance: dict[str, Any]

    @property
    def key(self) -> dict[str, Any]:
        """Identity of network and images: tasks with equal keys and options give equal results."""
        given = self.options
        return dict(
            version=__version__, torch=torch.__version__, config=repr(self.config.to_dict()),
            checkpoint=self.provenance['checkpoint_sha256'] or str(given.checkpoint),
            images=given.images, calibration=given.calibration)


def build_task(options: FileOptions) -> CompressTask:
    """Build the network of a config, load its checkpoint, and find its calibration images.

    Args:
        options (FileOptions): Options of a user.

    Raises:
        ValueError: The config is not of a task model with a backbone, the checkpoint belongs to
            another network, the kinds of site are not those of the network or of the scope, the
            divisor is above the width of every site, or there are no images.
    """
    config = load_config(options.config, options.cfg_options)
    model = build_model(config)
    if tasks.find_task(model) is not model or not hasattr(model, 'backbone'):
        raise ValueError('expected the config of an ordinary task model with a `backbone`, '
                         f'found `{type(model).__name__}` in `{options.config}`')
    content = load_weights(model, options.checkpoint)
    model.to(options.device)
    given_shape = options.input_shape
    options = dataclasses.replace(
        options, part=_budgeted_part(model, options), logits=_gives_scores(model),
        input_shape=default_shape(config, model, options.input_shape))
    if options.latency_table is not None:  # before an image is read
        conditions = dict(input_shape=list(options.input_shape), part=options.part)
        options = dataclasses.replace(options, latency=usable_table(
            options.latency_table, conditions, options.force_table))
    # before an image is read; defaults suit every network
    if options.sites or options.scope == 'model' or options.divisor > FileOptions.divisor:
        space = open_search_space(copy.deepcopy(model), options.sites, options.scope)
        check_divisor(space, options.divisor)
    batches = calibration_images(config, model, options.calibration,
                                 options.most_images, options.seed)
    source = dict(provenance(config, options.config, options.checkpoint, content), calibration=dict(
        images=batches.images, folder=options.calibration is not None, seed=options.seed))
    if given_shape is None:
        source['input_shape'] = 'the size of the config'
    folder = Path(options.out) if options.out else \
        run_folder(config, options.config) / 'compress'
    return CompressTask(options, config, model, content.get('meta') or {}, batches, folder, source)


def _budgeted_part(model: nn.Module, options: FileOptions) -> str | None:
    """The part that a target is about: without ``part``, the backbone of dense task models."""
    if options.scope == 'model':
        return 'model'
    # heads of detectors cost what the proposals make them cost: their budget is the backbone's
    return options.part or ('backbone' if tasks.is_dense_task(model) else None)


def _gives_scores(model: nn.Module) -> bool:
    """Whether outputs are scores of one set of classes: no features and no numbers."""
    head = getattr(model, 'head', None)
    return is_of(head, 'mmpretrain.models.heads.ClsHead') and \
        not is_of(head, 'mmpretrain.models.heads.RegressionHead')


def compress_files(task: CompressTask, options: FileOptions, folder: Path,
                   later: Mapping[str, Any] | None = None) -> SubnetFiles:
    """Compress to the target of some options; write structure, weights, config and sensitivity.

    A killed call goes on if it is repeated. The sites' profiles stay in the folder for
    later calls, see :func:`~mmkcr.closed_form.progress.open_profiles`.

    Args:
        task (CompressTask): The network and its images.
        options (FileOptions): Options of the task, with a target.
        folder (Path): Where files are written.
        later (Mapping, optional): Steps that follow, as a fine-tuning. Until they are done the
            progress stays, for a call that is repeated. Defaults to None.

    Raises:
        ValueError: See :func:`~mmkcr.closed_form.compression.compress`; or a table of latencies
            for another network, or profiles of other images or sites.
    """
    kept = open_profiles(folder, dict(task.key, digest=task.batches.digest()), options,
                         options.profiles)
    known = kept.profiles()
    run = partial(compress_network, task.model, task.batches, options,
                  forward=task_outputs if options.scope == 'backbone' else None)
    files = _write_result(task, run, folder, kept, dict(options.compression(), later=later))
    if known:
        files.notes.append(f'Profiles of the sites are those of an earlier call, in {kept.folder}.')
    return files


def refit_files(task: CompressTask, structure: str | Path,
                later: Mapping[str, Any] | None = None) -> SubnetFiles:
    """Refit to a structure and write files, see :func:`compress_files`.

    Args:
        task (CompressTask): The network and its images.
        structure (str | Path): See :func:`~mmkcr.closed_form.compression.refit_structure`.
        later (Mapping, optional): See :func:`compress_files`. Defaults to None.
    """
    wanted = Structure.load(structure)
    task = dataclasses.replace(task, provenance=dict(
        task.provenance, structure=Path(structure).name))
    run = partial(refit_structure, task.model, wanted, task.batches, task.options,
                  forward=task_outputs)
    return _write_result(task, run, task.folder, None, dict(
        task.options.compression(), structure=wanted.to_dict(), later=later))


def _write_result(task: CompressTask, run: Callable[..., CompressResult], folder: Path,
                  kept: CompressProgress | None, asked: Mapping[str, Any]) -> SubnetFiles:
    """Run a compression, or go on with one, and write its result.

    Args:
        task (CompressTask): The network and its images.
        run (Callable): Takes ``done``, the progress.
        folder (Path): Where files are written.
        kept (CompressProgress | None): Where the sites' profiles are.
        asked (Mapping): Identity of the compression beside the task's; ``later`` are the steps
            that follow.
    """
    done = CompressProgress(folder / PROGRESS, dict(task.key, **asked), kept)
    try:
        result = run(done=done)
    except ValueError:  # refused arguments leave nothing to continue
        for progress in filter(None, (done, kept)):
            progress.withdraw()
        raise
    structure = result.structure
    structure.provenance = dict(task.provenance, **structure.provenance,
                                agreement=result.agreement)
    if find_rank() == 0:
        write_config(task.config, task.options.scope, folder, structure)
        write_subnet(result.model, structure, task.meta, folder)
        if result.profiles:
            write_sensitivity(result.profiles, folder / SENSITIVITY)
        if asked['later'] is None:
            done.remove()
    return SubnetFiles(task.model, result.model, structure, folder, done)


def distil_files(task: CompressTask, folder: str | Path, length: str | int,
                 later: bool = False) -> DistilResult:
    """Distil the network in a folder of ``mmkcr compress`` and write it in its place.

    Classifiers and segmentors agree on their scores, detectors on the features that their heads
    read. Whole detectors, whose features are narrower than the dense network's, agree on all
    outputs of their heads for the dense network's proposals.

    Args:
        task (CompressTask): The dense network, which teaches, and its images.
        folder (str | Path): Folder of the compressed network.
        length (str | int): See :func:`~mmkcr.distillation.distil`.
        later (bool): Whether further steps follow. The progress then stays, for a call that is
            repeated, until whoever takes these steps calls :func:`forget_distillation`. Defaults
            to False.
    """
    folder = Path(folder)
    student = build_model(load_config(folder / CONFIG))
    meta = load_weights(student, folder / SUBNET).get('meta') or {}
    structure = Structure.load(folder / STRUCTURE)
    scope = structure.provenance.get('asked', {}).get('scope', 'backbone')
    batches, forward = _lessons(task, scope)
    result = distil(student, task.model, batches, length, forward, logits=task.options.logits,
                    work_dir=folder)
    structure.provenance['distil'] = dict(
        length=str(length), steps=result.steps, best=result.best, before=result.errors[0],
        after=result.errors[result.best])
    write_subnet(result.model, structure, meta, folder)
    if not later:  # the next call begins with what this one wrote
        forget_distillation(folder)
    return result


def check_distillation(task: CompressTask, length: str | int) -> None:
    """Refuse a distillation that would stop behind the compression: few images, a short time.

    Args:
        task (CompressTask): The dense network and its images.
        length (str | int): See :func:`~mmkcr.distillation.distil`.
    """
    batches, forward = _lessons(task, task.options.scope)
    check_length(task.model, batches, length, forward, logits=task.options.logits)


def _lessons(task: CompressTask, scope: str) -> tuple[Sequence[Any], Callable[..., Any]]:
    """Batches to distil on, and the outputs that are to agree, by the compressed scope."""
    if scope == 'backbone':
        return task.batches, task_outputs
    detects = tasks.is_detector(task.model)
    return HeldBatches(task.batches, task.model) if detects else task.batches, whole_outputs


def forget_distillation(folder: Path) -> None:
    """Remove the progress of a distillation whose result is written."""
    shutil.rmtree(folder / DISTIL_FOLDER, ignore_errors=True)


def int8_files(task: CompressTask, slim: nn.Module, folder: Path,
               runtime: str) -> list[DeployedFile]:
    """Write and measure fp32 and int8 files of both networks.

    They take images of the size that MACs are counted for; other images are resized. They are
    calibrated on :data:`INT8_IMAGES` images of the task except the last tenth, which compares
    outputs.

    Args:
        task (CompressTask): The dense network and its images.
        slim (nn.Module): The compressed network.
        folder (Path): Where files are written.
        runtime (str): One of :data:`~mmkcr.deploy.int8.QUANTIZERS`.
    """
    images = task.batches[:INT8_IMAGES]
    count = max(1, len(images) // 10)
    bench = FileBench(copy.deepcopy(task.model).cpu(), images[-count:], images[:-count] or images,
                      task.options.input_shape, task.options.logits, INT8_IMAGES)
    return bench.deploy(slim.cpu(), folder, runtime)


def write_sensitivity(profiles: Mapping[str, SiteProfile], path: Path) -> None:
    """Write the order of every site's units, and the losses at its sizes."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({name: dict(
            order=profile.order.tolist(), losses=profile.losses.tolist())
            for name, profile in profiles.items()}) + '\n')
