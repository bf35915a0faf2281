"""Distillation: the dense network teaches the compressed one on unlabelled images."""

import copy
import functools
import math
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import InfiniteSampler
from mmengine.dist import broadcast_object_list, get_world_size, init_dist, is_distributed
from mmengine.hooks import Hook
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from mmkcr.closed_form.batches import of_size, split_batches
from mmkcr.closed_form.compression import called
from mmkcr.closed_form.options import Forward
from mmkcr.engine.resume.checkpoints import AtomicCheckpointHook
from .augmentation import AugmentedBatches
from .hook import BEST, DistilHook
from .model import DistilModel
from .options import DistilOptions, read_length

#: Unit of the rate of a tensor of zeros.
ZEROS = 0.01


@dataclass
class DistilResult:
    """Result of :func:`distil`."""

    #: The best network on held-out images; the student itself if none was better.
    model: nn.Module
    #: Of the run.
    steps: int
    #: Distance to the teacher on held-out images by step; step 0 is what it began with.
    errors: dict[int, float]

    @property
    def best(self) -> int:
        """Step of :attr:`model`."""
        return min(self.errors, key=lambda step: (self.errors[step], step))


def distil(student: nn.Module, teacher: nn.Module, images: Tensor | Sequence[Any],
           length: str | int, forward: Forward | None = None,
           held_out: Tensor | Sequence[Any] | None = None, logits: bool = False,
           work_dir: str | Path | None = None, **options: Any) -> DistilResult:
    """Teach a compressed network what its dense one does on unlabelled images.

    MMEngine's ``Runner`` trains: on a GPU if there is one, in several processes under ``torchrun``,
    and a call that is repeated with its ``work_dir`` goes on where it was. The result is never
    worse than what it began with, on held-out images.

    Args:
        student, teacher (nn.Module): The compressed and the dense network; they are not changed.
        images, forward: As of :func:`~mmkcr.closed_form.compression.compress`.
        length (str | int): Number of steps, or a time such as ``'30min'``, ``'2h'`` or ``'90s'``:
            as many steps as that takes at the speed of the first ones.
        held_out (Tensor | Sequence, optional): Images to compare on. Defaults to None: as of
            ``compress``.
        logits (bool): See :class:`~mmkcr.closed_form.options.CompressOptions`.
        work_dir (str | Path, optional): Of checkpoints and logs. Defaults to None: a temporary one.
        **options: See :class:`DistilOptions`.

    Raises:
        ValueError: No held-out images, networks with other outputs, or a time too short for a step.
    """
    settings, forward = DistilOptions(**options), forward or called
    length = read_length(length)
    batches, held_out = split_batches(images, held_out)
    if held_out is batches:
        raise ValueError('expected at least two images or batches to distil, one to compare on, '
                         f'found {len(batches)}')
    batches, held_out = (of_size(one, settings.batch_size) for one in (batches, held_out))
    launcher = 'pytorch' if int(os.environ.get('WORLD_SIZE', 1)) > 1 else 'none'
    if launcher != 'none' and not is_distributed():
        if torch.cuda.is_available():
            init_dist(launcher, backend='nccl')
        else:  # MMEngine would choose a GPU
            torch.distributed.init_process_group('gloo')
    with ExitStack() as stack:
        folder = Path(work_dir or stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        model = DistilModel(student, teacher, forward, settings, logits, held_out)
        draws = AugmentedBatches(batches, settings, model.data_preprocessor)
        steps = [count_steps(length, model, draws, folder, settings)]
        broadcast_object_list(steps)
        hook = DistilHook(length, steps[0], folder, settings)
        runner = build_runner(model, draws, hook, steps[0], folder, settings, launcher)
        runner.train()
        best = torch.load(folder / BEST, map_location='cpu')
        errors = dict(runner.message_hub.get_info('distil_errors'))
    result = copy.deepcopy(student)
    result.load_state_dict(best['state_dict'])
    return DistilResult(result, steps[0], errors)


def count_steps(length: int | float, model: DistilModel, draws: AugmentedBatches, folder: Path,
                settings: DistilOptions) -> int:
    """Number of steps, those of the first call if a call is repeated."""
    if isinstance(length, int):
        return length
    if (folder / BEST).is_file() and (folder / 'last_checkpoint').is_file():
        best = torch.load(folder / BEST, map_location='cpu')
        if best.get('length') == length:
            return best['steps']
    for position in range(2):  # the second one counts
        began = time.perf_counter()
        loss = sum(model(model.data_preprocessor(draws[position])).values())
        loss.backward()
        loss.item()
        model.zero_grad(set_to_none=True)
        took = (time.perf_counter() - began) * settings.accumulate
    began = time.perf_counter()
    model.measure_distance()
    steps = int((length - (settings.comparisons + 1) * (time.perf_counter() - began)) / took)
    if steps < 1:
        raise ValueError(f'expected a time in which a step of {took:.3g} s and '
                         f'{settings.comparisons + 1} comparisons fit, found {length:.0f} s')
    return steps


def build_runner(model: DistilModel, draws: AugmentedBatches, hook: Hook, steps: int,
                 folder: Path, settings: DistilOptions, launcher: str) -> Runner:
    """A runner that trains a model and goes on with what is in its folder."""
    groups: dict[float, list[Tensor]] = {}  # few: each costs a GPU launches of its own
    for value in model.student.parameters():
        unit = float(value.detach().square().mean().sqrt()) or ZEROS
        groups.setdefault(2.**round(math.log2(unit)), []).append(value)
    optimizer = torch.optim.AdamW(
        [dict(params=values, unit=unit) for unit, values in groups.items()], lr=settings.rate,
        weight_decay=0., betas=(0.9, 0.99), fused=torch.cuda.is_available())
    amp = torch.cuda.is_available() if settings.amp is None else settings.amp
    wrapper = functools.partial(AmpOptimWrapper, dtype='bfloat16') if amp else OptimWrapper
    interval = max(1, steps // settings.comparisons)
    # in the order of their positions, of which processes take turns
    batches = Subset(draws, range(steps * settings.accumulate * get_world_size()))
    sampler = InfiniteSampler(batches, shuffle=False, seed=settings.seed)
    return Runner(
        model, str(folder),
        train_dataloader=DataLoader(batches, sampler=sampler, batch_size=1, collate_fn=tuple),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=steps * settings.accumulate),
        optim_wrapper=wrapper(optimizer=optimizer, accumulative_counts=settings.accumulate),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=max(1, interval // 5)),
            checkpoint=dict(type=AtomicCheckpointHook, by_epoch=False, max_keep_ckpts=1,
                            interval=interval * settings.accumulate)),
        custom_hooks=[hook], resume=(folder / 'last_checkpoint').is_file(), launcher=launcher,
        log_processor=dict(by_epoch=False), randomness=dict(seed=settings.seed),
        default_scope='mmengine', experiment_name=f'distil_{time.time_ns()}',
        cfg=dict(model_wrapper_cfg=dict(
            type='MMDistributedDataParallel', find_unused_parameters=True,
            broadcast_buffers=False, **({} if torch.cuda.is_available() else dict(
                device_ids=None)))))
