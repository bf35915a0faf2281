"""Distillation: the dense network teaches the compressed one on unlabelled images."""

import copy
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.closed_form.compression import call_network
from mmkcr.closed_form.options import Forward
from mmkcr.core import Progress
from mmkcr.core.processes import join_torchrun
from mmkcr.models.tasks import keep_randomness
from mmkcr.visualization import show_progress
from .augmentation import AugmentedBatches
from .given import check_networks, identify, split_images
from .model import DistilModel
from .options import DistilOptions, read_length
from .training import Training, steps_to_compare

#: Folder of the progress in ``work_dir``, and its file.
FOLDER, STATE = '.distil', 'state.pth'


@dataclass
class DistilResult:
    """Result of :func:`distil`.

    Args:
        model (nn.Module): The best network on held-out images; a copy of the student if no step was
            better.
        steps (int): Number of steps that were planned.
        errors (dict[int, float]): Distance to the teacher on held-out images by step. Step 0 is the
            student.
    """

    model: nn.Module
    steps: int
    errors: dict[int, float]

    @property
    def best(self) -> int:
        """Step of :attr:`model`."""
        return min(self.errors, key=lambda step: (self.errors[step], step))

    def __str__(self) -> str:
        return (f'Distance to the dense network on held-out images: {self.errors[0]:.4g} before, '
                f'{self.errors[self.best]:.4g} after step {self.best} of {self.steps}')


@torch.inference_mode(False)  # a training needs gradients, wherever it is called
@torch.enable_grad()
@keep_randomness()
def distil(student: nn.Module, teacher: nn.Module, images: Tensor | Sequence[Any],
           length: str | int, forward: Forward | None = None,
           held_out: Tensor | Sequence[Any] | None = None, logits: bool = False,
           work_dir: str | Path | None = None, **options: Any) -> DistilResult:
    """Teach a compressed network the outputs of its dense network on unlabelled images.

    It runs on a GPU if there is one, and in several processes under ``torchrun``. The result is
    never worse than the student on held-out images. Frozen parameters of the student stay as they
    are. A run whose loss is not finite ends there with a warning, and gives its best network.

    Args:
        student (nn.Module): The compressed network; it is not changed.
        teacher (nn.Module): The dense network, with weights of the student's type; it is not
            changed.
        images (Tensor | Sequence): Images (N, 3, H, W), or batches for ``forward``.
        length (str | int): Number of steps, or a time like ``'30min'``, ``'2h'`` or ``'90s'``: as
            many steps as fit into it at the speed of the first ones, with all other work of the
            call.
        forward (Callable, optional): Takes a network and a batch of ``images``; returns the outputs
            that are to agree. Defaults to None: the network is called with the batch.
        held_out (Tensor | Sequence, optional): Images to compare on. Defaults to None: the last
            tenth of ``images``; nothing is learnt from it then.
        logits (bool): Whether the last output is class scores (B, C). Defaults to False.
        work_dir (str | Path, optional): Folder of the progress. A killed call that is repeated
            with it goes on where it was, and a finished one gives its result again. With other
            networks, images, length or options it begins anew. Defaults to None: nothing is
            written.
        **options: See :class:`DistilOptions`.

    Raises:
        ValueError: A single image, images or outputs that are not finite, networks that cannot be
            trained or have outputs of other shapes, or a time too short for a step.
    """
    began = time.perf_counter()
    settings, length = DistilOptions(**options), read_length(length)
    forward = forward or call_network
    batches, held_out = split_images(images, held_out, settings.batch_size)
    check_networks(student, teacher)
    join_torchrun()
    model = DistilModel(student, teacher, forward, settings, logits, held_out)
    training = Training(model, AugmentedBatches(batches, settings, model.device), settings)
    progress = None
    if work_dir is not None:
        progress = Progress(Path(work_dir, FOLDER), identify(
            student, teacher, batches, held_out, forward, settings, logits=logits, length=length,
            processes=training.processes))
    state = training.share(progress and training.first and progress.read(STATE))
    if state and state['step']:
        training.load_state(state)
        start, steps = state['step'], state['steps']
    else:
        start, steps = 0, _begin(training, length, settings, progress, began)
    _train(training, range(start, steps), settings, progress)
    result = copy.deepcopy(student)
    with torch.no_grad():
        for value, best in zip(model.parameters_to_train(result), training.best, strict=True):
            value.copy_(best)
    return DistilResult(result, steps, training.errors)


@torch.inference_mode(False)
@torch.enable_grad()
@keep_randomness()
def check_length(teacher: nn.Module, images: Tensor | Sequence[Any], length: str | int,
                 forward: Forward | None = None, logits: bool = False, **options: Any) -> None:
    """Refuse before a compression images and a time that are too few to distil its result.

    A time must suffice for a step of the dense network; a compressed network is faster.

    Args:
        teacher (nn.Module): The dense network.
        images (Tensor | Sequence): Images to learn from, and in their last tenth to compare on.
        length (str | int): Number of steps, or a time.
        forward (Callable, optional): Gives the outputs that are to agree. Defaults to None: the
            network is called with a batch.
        logits (bool): Whether the last output is class scores (B, C). Defaults to False.
        **options: See :class:`DistilOptions`.

    Raises:
        ValueError: A single image or batch, or a time too short for a step.
    """
    began = time.perf_counter()
    settings, length = DistilOptions(**options), read_length(length)
    forward = forward or call_network
    batches, held_out = split_images(images, None, settings.batch_size)
    check_networks(copy.deepcopy(teacher).requires_grad_(True), teacher)
    if isinstance(length, float):
        student = copy.deepcopy(teacher).requires_grad_(True)
        model = DistilModel(student, teacher, forward, settings, logits, held_out)
        training = Training(model, AugmentedBatches(batches, settings, model.device), settings)
        _begin(training, length, settings, None, began)


def _begin(training: Training, length: int | float, settings: DistilOptions,
           progress: Progress | None, began: float) -> int:
    """Compare the networks at the start of a training; gives its number of steps.

    Args:
        training (Training): A training that has taken no step.
        length (int | float): Steps, or seconds.
        settings (DistilOptions): Options.
        progress (Progress, optional): Place of the states, whose writing takes time, too.
        began (float): Start of the call, by ``time.perf_counter()``.
    """
    started = time.perf_counter()
    if not math.isfinite(training.compare(0)):
        raise ValueError('expected finite outputs of the student on held-out images, found `nan` '
                         'or `inf`')
    if isinstance(length, int):
        return length
    if progress is not None and training.first:
        progress.save(STATE, training.state(0, 0))
    pause = training.share(time.perf_counter() - started)
    step = training.measure_step(length)
    left = training.share(length - (time.perf_counter() - began))
    steps = int(left / (step + pause))  # a comparison behind each step
    if steps > settings.comparisons:
        steps = int((left - settings.comparisons * pause) / step)
    if steps < 1:
        raise ValueError(f'expected a time in which a step of {step:.3g} s and a comparison of '
                         f'{pause:.3g} s fit behind a start of {length - left:.3g} s, found '
                         f'{length:g} s')
    return steps


def _train(training: Training, steps: range, settings: DistilOptions,
           progress: Progress | None) -> None:
    """Take steps, compare, and keep the state; end with a warning where numbers are not finite."""
    compared = set(steps_to_compare(steps.stop, settings))
    for step in show_progress(steps, 'Distillation', visible=settings.progress):
        loss = training.take_step(step, steps.stop)
        done = step + 1
        error = training.compare(done) if done in compared and math.isfinite(loss) else 0.
        if not math.isfinite(loss + error):
            what = f'its distance on held-out images is {error}' if math.isfinite(loss) else \
                f'its loss is {loss}'
            logging.getLogger('mmkcr').warning(
                'The distillation ends at step %d of %d, as %s: look for images that are not '
                'finite, or give a lower `rate` than %g. The result is the network of step %d.',
                done, steps.stop, what, settings.rate, min(
                    training.errors, key=training.errors.__getitem__))
            return
        if done in compared and progress is not None and training.first:
            progress.save(STATE, training.state(done, steps.stop))
