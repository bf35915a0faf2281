"""What happens before and after each step of a distillation."""

import math
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmkcr.core import atomic_write
from mmkcr.models.tasks import unwrap
from .options import DistilOptions

BEST = 'best.pth'


class DistilHook(Hook):
    """Sets the rates of a step, averages the weights after it, and keeps the best on the way."""

    priority = 'HIGH'  # before checkpoints

    def __init__(self, length: int | float, steps: int, folder: Path,
                 settings: DistilOptions) -> None:
        self._length, self._steps, self._folder, self._settings = length, steps, folder, settings

    def before_train(self, runner: Runner) -> None:
        """Compare what the run begins with."""
        if runner.iter == 0:
            (self._folder / BEST).unlink(missing_ok=True)
            self._keep_best(runner, 0)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Set the learning rates."""
        rate = rate_at(runner.iter // self._settings.accumulate, self._steps, self._settings)
        for group in runner.optim_wrapper.optimizer.param_groups:
            group['lr'] = rate * group['unit']

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None,
                         outputs: Any = None) -> None:
        """Average the weights, and compare them every so often."""
        step, rest = divmod(runner.iter + 1, self._settings.accumulate)
        if rest:
            return
        model = unwrap(runner.model)
        share = max(1 / (step + 1), 1 / max(2, self._settings.average * self._steps))
        with torch.no_grad():
            torch._foreach_lerp_(list(model.average.parameters()),
                                 list(model.student.parameters()), share)
        if step == self._steps or step % max(1, self._steps // self._settings.comparisons) == 0:
            self._keep_best(runner, step)

    def _keep_best(self, runner: Runner, step: int) -> None:
        model = unwrap(runner.model)
        error = model.measure_distance()
        errors = dict(runner.message_hub.runtime_info.get('distil_errors', {}))
        better = math.isfinite(error) and all(error < other for other in errors.values())
        errors[step] = error
        runner.message_hub.update_info('distil_errors', errors)
        runner.logger.info(f'step {step} of {self._steps}: distance to the teacher {error:.4f} on '
                           f'held-out images{", the best" if better else ""}')
        if better and is_main_process():
            with atomic_write(self._folder / BEST) as path:
                torch.save(dict(state_dict=model.average.state_dict(), length=self._length,
                                steps=self._steps), path)


def rate_at(step: int, steps: int, settings: DistilOptions) -> float:
    """Learning rate in units of each tensor's: a warm-up, then half a cosine to 0, by steps."""
    return settings.rate * 0.5 * (1 + math.cos(math.pi * step / steps)) * min(
        1., (step + 1) / max(1., settings.warm_up * steps))
