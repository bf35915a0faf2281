"""Compressing from files to files: what ``mmkcr compress`` does."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from mmkcr.apis.slim_files import (
    CONFIG,
    STRUCTURE,
    WEIGHTS,
    SubnetFiles,
    provenance,
    write_config,
    write_subnet,
)
from mmkcr.closed_form.compression import CompressResult, compress, refit_structure
from mmkcr.closed_form.given import Survey, survey
from mmkcr.closed_form.images import calibration_images
from mmkcr.closed_form.options import CompressOptions, SiteProfile
from mmkcr.closed_form.progress import CompressProgress, kept_profiles
from mmkcr.closed_form.whole import HeldBatches, whole_outputs
from mmkcr.core import Structure, atomic_write
from mmkcr.deploy.int8 import DeployedFile, deploy_int8
from mmkcr.deploy.latency_table import usable_table
from mmkcr.distillation import DistilResult, check_length, distil
from mmkcr.distillation.run import PROGRESS as DISTIL_PROGRESS
from mmkcr.engine.build import build_model, default_shape, load_config, load_weights, run_folder
from mmkcr.lazy import is_of
from mmkcr.models import tasks
from mmkcr.version import __version__

#: Maximum number of calibration images by default.
MOST_IMAGES = 512
SENSITIVITY, PROGRESS = 'sensitivity.json', '.progress'


def task_outputs(model: nn.Module, batch: Any) -> Any:
    """Outputs of a task model that must agree: scores, score maps, or a detector's features."""
    if tasks.is_detector(model):
        return model.extract_feat(batch['inputs'])
    return tasks.deciding_scores(model, tasks.tensor_outputs(
        model, batch['inputs'], batch.get('data_samples')))


class CompressTask:
    """A checkpoint to compress, with its images, from files to files.

    Its arguments and what it writes are those of ``mmkcr compress``, see its ``--help``. A method
    that was killed goes on if it is called again with the same arguments.
    """

    def __init__(self, config: str | Path, checkpoint: str | Path,
                 calibration: str | None = None, images: int | None = None,
                 shape: Sequence[int] | None = None, part: str | None = None,
                 out: str | Path | None = None, seed: int = 0, device: str = 'cpu',
                 options: Mapping[str, Any] | None = None, scope: str = 'backbone') -> None:
        self.config, self.scope = load_config(config, options), scope
        self.model = model = build_model(self.config)
        if tasks.find_task(model) is not model or not hasattr(model, 'backbone'):
            raise ValueError('expected the config of an ordinary task model with a `backbone`, '
                             f'found `{type(model).__name__}` in `{config}`')
        content = load_weights(model, checkpoint)
        self.meta = content.get('meta') or {}
        if scope == 'model' and part == 'backbone':
            raise ValueError("expected a budget over the whole model for the scope 'model', found "
                             "that of the part 'backbone'")
        # heads of detectors cost what the proposals make them cost: their budget is the backbone's
        self.part = 'model' if scope == 'model' else \
            part or ('backbone' if tasks.is_dense_task(model) else None)
        self.input_shape = shape or default_shape(self.config, model)
        model.to(device)
        self.batches = calibration_images(self.config, model, calibration, images or MOST_IMAGES,
                                          seed)
        if images is None:
            surveyed = survey(model.eval(), self.batches, task_outputs, False)
            host = model if scope == 'model' else model.backbone
            self.batches = self.batches[:enough_images(surveyed, host.modules())]
        self.folder = Path(out) if out else run_folder(self.config, config) / 'compress'
        head = getattr(model, 'head', None)  # scores of one set of classes: no features or numbers
        self.classifies = is_of(head, 'mmpretrain.models.heads.ClsHead') and \
            not is_of(head, 'mmpretrain.models.heads.RegressionHead')
        self.provenance = dict(
            provenance(self.config, config, checkpoint, content), calibration=dict(
                images=self.batches.images, folder=calibration is not None, seed=seed))
        #: Tasks with equal keys give the same result.
        self.key = dict(
            version=__version__, torch=torch.__version__, config=self.config.pretty_text,
            checkpoint=self.provenance['checkpoint_sha256'] or str(checkpoint), images=images,
            calibration=calibration, shape=self.input_shape, part=self.part, seed=seed, scope=scope)

    def compress(self, target: str | int | float, sites: Sequence[Any] | None = None,
                 cost: str = 'macs', latency: str | Path | None = None,
                 force_latency: bool = False, profiles: str | Path | None = None,
                 later: Mapping[str, Any] | None = None, name: str = '',
                 **settings: Any) -> SubnetFiles:
        """Compress; writes structure, weights, config and the sites' sensitivity.

        The sites' profiles stay in the folder for later calls, see :func:`kept_profiles`.

        Args:
            target, sites, cost: See :func:`~mmkcr.closed_form.compression.compress`.
            latency (str | Path, optional): Table of latencies: ``target`` is a time, also with
                ``force_latency`` that of another machine. Defaults to None.
            profiles (str | Path, optional): Folder of an earlier call whose profiles are used.
                Defaults to None: those in this folder, if they are of these images and sites.
            later (Mapping, optional): Steps that follow, such as fine-tuning. Until they are done
                the progress stays, for a call that is repeated. Defaults to None.
            name (str): Of a folder in the task's. Defaults to the task's own.
            **settings: See :class:`~mmkcr.closed_form.options.CompressOptions`.
        """
        table = None if latency is None else usable_table(latency, dict(
            input_shape=list(self.input_shape), part=self.part), force_latency)
        folder = self.folder / name
        kept = kept_profiles(folder, dict(self.key, digest=self.batches.digest()), sites, settings,
                             profiles)
        known = kept.profiles()
        run = partial(compress, self.model, self.batches, target, sites, latency=table, cost=cost,
                      scope=self.scope, ordinary=False,
                      forward=task_outputs if self.scope == 'backbone' else None)
        files = self._written(run, folder, settings, kept, dict(
            sites=sites, target=target, cost=cost, later=later,
            latency=None if latency is None else Path(latency).read_text()))
        if known:
            files.notes.append('Profiles of the sites are those of an earlier call, in '
                               f'{kept.folder}.')
        return files

    def refit(self, structure: str | Path, later: Mapping[str, Any] | None = None,
              **settings: Any) -> SubnetFiles:
        """Refit to a structure, see :func:`~mmkcr.closed_form.compression.refit_structure`."""
        wanted = Structure.load(structure)
        self.provenance['structure'] = Path(structure).name
        run = partial(refit_structure, self.model, wanted, self.batches, forward=task_outputs)
        return self._written(run, self.folder, settings, None, dict(
            structure=wanted.to_dict(), later=later))

    def _written(self, run: Callable[..., CompressResult], folder: Path,
                 settings: Mapping[str, Any], kept: CompressProgress | None,
                 asked: Mapping[str, Any]) -> SubnetFiles:
        """Run a compression, or go on with it, and write its result."""
        done = CompressProgress(folder / PROGRESS, dict(self.key, settings=settings, **asked), kept)
        try:
            result = run(input_shape=self.input_shape, part=self.part, done=done,
                         logits=self.classifies, **settings)
        except ValueError:  # refused arguments leave nothing to continue
            for progress in filter(None, (done, kept)):
                progress.withdraw()
            raise
        structure = result.structure
        structure.provenance = dict(self.provenance, **structure.provenance,
                                    agreement=result.agreement)
        write_config(self.config, self.scope, folder, structure)
        write_subnet(result.model, structure, self.meta, folder)
        if result.profiles:
            write_sensitivity(result.profiles, folder / SENSITIVITY)
        if asked['later'] is None:
            done.remove()
        return SubnetFiles(self.model, result.model, structure, folder, done)

    def distil(self, folder: str | Path, length: str | int, later: bool = False) -> DistilResult:
        """Distil the network in a folder of ``mmkcr compress`` and write it in its place.

        Classifiers and segmentors agree on their scores, detectors on the features that their
        heads read. Whole detectors, whose features are narrower than the dense network's, agree on
        all outputs of their heads for the dense network's proposals.

        Args:
            folder (str | Path): Folder of the compressed network.
            length (str | int): See :func:`~mmkcr.distillation.distil`.
            later (bool): Whether further steps follow. The progress then stays, for a call that is
                repeated, until whoever takes these steps calls :func:`forget_distillation`.
                Defaults to False.
        """
        folder = Path(folder)
        student = build_model(load_config(folder / CONFIG))
        meta = load_weights(student, folder / WEIGHTS).get('meta') or {}
        structure = Structure.load(folder / STRUCTURE)
        scope = structure.provenance.get('asked', {}).get('scope', 'backbone')
        batches, forward = self._lessons(scope)
        result = distil(student, self.model, batches, length, forward, logits=self.classifies,
                        work_dir=folder)
        structure.provenance['distil'] = dict(
            length=str(length), steps=result.steps, best=result.best, before=result.errors[0],
            after=result.errors[result.best])
        write_subnet(result.model, structure, meta, folder)
        if not later:  # the next call begins with what this one wrote
            forget_distillation(folder)
        return result

    def check_distillation(self, length: str | int) -> None:
        """Refuse a distillation that would fail behind the compression: images, time, outputs."""
        batches, forward = self._lessons(self.scope)
        check_length(self.model, batches, length, forward, logits=self.classifies)

    def _lessons(self, scope: str) -> tuple[Sequence[Any], Callable[[nn.Module, Any], Any]]:
        """Batches to distil on, and the outputs that are to agree, for what was compressed."""
        if scope == 'backbone':
            return self.batches, task_outputs
        detector = tasks.is_detector(self.model)
        return HeldBatches(self.batches, self.model) if detector else self.batches, whole_outputs


def forget_distillation(folder: Path) -> None:
    """Remove the progress of a distillation, as its result is written."""
    shutil.rmtree(folder / DISTIL_PROGRESS, ignore_errors=True)


def int8_files(dense: nn.Module, slim: nn.Module, batches: Sequence[Any], folder: Path,
               runtime: str) -> list[DeployedFile]:
    """Write fp32 and int8 files of both networks, see :func:`~mmkcr.deploy.int8.deploy_int8`.

    They are calibrated on the batches except the last tenth, which compares outputs.
    """
    images = [batch['inputs'].cpu() for batch in batches]
    # the files take images of one size
    size = images[0].shape[-2:]
    images = [(one if one.shape[-2:] == size else F.interpolate(one, size, mode='bilinear')).numpy()
              for one in images]
    count = max(1, len(images) // 10)
    return deploy_int8(copy.deepcopy(dense).cpu(), slim.cpu(), images[:-count] or images,
                       images[-count:], folder, runtime)


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


def write_sensitivity(profiles: Mapping[str, SiteProfile], path: Path) -> None:
    """Write the order of every site's units, and the losses at its sizes."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({name: dict(
            order=profile.order.tolist(), losses=profile.losses.tolist())
            for name, profile in profiles.items()}) + '\n')
