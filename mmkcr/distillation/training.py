"""The steps of a distillation."""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from .augmentation import AugmentedBatches
from .model import DistilModel
from .options import DistilOptions

#: Unit of the rate of a tensor of zeros.
ZEROS = 0.01
#: Share of a time, and maximum number of steps, that are spent on measuring a step.
MEASURED, MOST_MEASURED = 0.02, 10


class Training:
    """Takes steps: rates, gradients of all processes, and the average of the weights.

    Args:
        model (DistilModel): The networks.
        batches (AugmentedBatches): Batches by position.
        settings (DistilOptions): Options.
    """

    def __init__(self, model: DistilModel, batches: AugmentedBatches,
                 settings: DistilOptions) -> None:
        self._model, self._batches, self._settings = model, batches, settings
        self._student = model.parameters_to_train(model.student)
        self._average = model.parameters_to_train(model.average)
        joined = distributed.is_initialized()
        self._rank = distributed.get_rank() if joined else 0
        #: Number of processes.
        self.processes = distributed.get_world_size() if joined else 1
        #: Whether this process is the first one, which writes files.
        self.first = self._rank == 0
        #: The weights with the least distance so far, on the CPU.
        self.best: list[Tensor] = []
        #: Distances on held-out images by step, all finite.
        self.errors: dict[int, float] = {}
        self._optimizer = self._new_optimizer()

    def compare(self, step: int) -> float:
        """Compare the average of the weights on held-out images, and keep it if it is the best.

        All processes use the number of the first one.
        """
        error = self.share(self._model.measure_distance())
        if math.isfinite(error):
            if all(error < other for other in self.errors.values()):
                self.best = [value.detach().cpu().clone() for value in self._average]
            self.errors[step] = error
        return error

    def take_step(self, step: int, steps: int) -> float:
        """Take a step; gives its loss. A step whose loss is not finite changes nothing.

        Args:
            step (int): Number of steps before this one.
            steps (int): Number of steps of the run.
        """
        rate = rate_at(step, steps, self._settings)
        for group in self._optimizer.param_groups:
            group['lr'] = rate * group['unit']
        loss = self._add_gradients(step)
        if math.isfinite(loss):
            self._optimizer.step()
            share = max(1 / (step + 1), 1 / max(2, self._settings.average * steps))
            with torch.no_grad():
                torch._foreach_lerp_(self._average, self._student, share)
        self._optimizer.zero_grad(set_to_none=True)
        return loss

    def measure_step(self, seconds: float) -> float:
        """Seconds that a step takes; steps are taken, and their effects undone.

        Args:
            seconds (float): Time of the whole run; the measurement takes a small share of it.
        """
        before = [value.detach().clone() for value in self._student]
        took: list[float] = []
        self._add_gradients(0)  # the first call makes kernels and buffers
        while not took or sum(took) < MEASURED * seconds and len(took) < MOST_MEASURED:
            began = time.perf_counter()
            self.take_step(0, 1)
            took.append(time.perf_counter() - began)
        with torch.no_grad():
            torch._foreach_copy_(self._student, before)
            torch._foreach_copy_(self._average, before)
        self._optimizer = self._new_optimizer()
        return self.share(sum(took) / len(took))

    def state(self, step: int, steps: int) -> dict[str, Any]:
        """All that a killed run needs to go on behind a step.

        Args:
            step (int): Number of steps that were taken.
            steps (int): Number of steps of the run.
        """
        return dict(step=step, steps=steps, errors=self.errors, best=self.best,
                    student=[value.detach() for value in self._student],
                    average=[value.detach() for value in self._average],
                    optimizer=self._optimizer.state_dict())

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from a :meth:`state`."""
        self.errors, self.best = dict(state['errors']), list(state['best'])
        self._optimizer.load_state_dict(state['optimizer'])
        with torch.no_grad():
            for name, weights in (('student', self._student), ('average', self._average)):
                for value, stored in zip(weights, state[name], strict=True):
                    value.copy_(stored)

    def share(self, value: Any) -> Any:
        """Give all processes the value of the first one."""
        shared = [value]
        if self.processes > 1:
            distributed.broadcast_object_list(shared)
        return shared[0]

    def _add_gradients(self, step: int) -> float:
        """Gradients of a step's batches, the mean over all processes; gives the mean loss."""
        count = self._settings.accumulate
        use_amp = torch.cuda.is_available() if self._settings.amp is None else self._settings.amp
        total = torch.zeros((), device=self._model.device)
        for batch in range(step * count, (step + 1) * count):
            with torch.autocast(self._model.device.type, torch.bfloat16, use_amp):
                loss = self._model.loss(self._batches[batch * self.processes + self._rank]) / count
            loss.backward()
            total += loss.detach()
        if self.processes > 1:
            total = self._reduce(total)
        return float(total)

    def _reduce(self, loss: Tensor) -> Tensor:
        """Mean gradients over all processes, in place; gives the mean loss."""
        for value in self._student:
            if value.grad is None:  # another process may have one
                value.grad = torch.zeros_like(value)
        for tensor in [*(value.grad for value in self._student), loss]:
            distributed.all_reduce(tensor)
            tensor /= self.processes
        return loss

    def _new_optimizer(self) -> torch.optim.Optimizer:
        """AdamW with a rate for each power of two of the tensors' root mean squares."""
        groups: dict[float, list[Tensor]] = {}  # few: each costs a GPU launches of its own
        for value in self._student:
            unit = float(value.detach().square().mean().sqrt()) or ZEROS
            groups.setdefault(2.**round(math.log2(unit)), []).append(value)
        return torch.optim.AdamW(
            [dict(params=values, unit=unit) for unit, values in groups.items()],
            lr=self._settings.rate, weight_decay=0., betas=(0.9, 0.99),
            fused=self._model.device.type == 'cuda')


def rate_at(step: int, steps: int, settings: DistilOptions) -> float:
    """Learning rate of a step: a warm-up, then half a cosine to 0.

    Args:
        step (int): Number of steps before this one.
        steps (int): Number of steps of the run.
        settings (DistilOptions): Options, with the highest rate, in units of each tensor.
    """
    return settings.rate * 0.5 * (1 + math.cos(math.pi * step / steps)) * min(
        1., (step + 1) / max(1., settings.warm_up * steps))


def steps_to_compare(steps: int, settings: DistilOptions) -> Sequence[int]:
    """Numbers of steps that are taken before each comparison; the last comparison ends the run.

    Args:
        steps (int): Number of steps of the run.
        settings (DistilOptions): Options, with the number of comparisons.
    """
    interval = -(-steps // max(1, settings.comparisons))
    return [*range(interval, steps, interval), steps]
