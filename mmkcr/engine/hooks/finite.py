"""Stops a run whose numbers are not finite, before it is saved."""

import math
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner

from mmkcr.core import NonFiniteError
from mmkcr.core.checks import all_finite
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS


@HOOKS.register_module()
class FiniteHook(Hook):
    """Stops at the first loss that is not finite, and never saves a state that is not.

    The message names iteration and term, and the last good checkpoint remains the last one. In
    mixed precision (``AmpOptimWrapper``) the scaler skips steps while it looks for its scale, and
    the weights stay as they are. It may skip ``patience`` of them in a row, where gradients are
    accumulated as well. A search, which stops by itself before the step, leaves such losses to this
    hook then. ``ExactResumeHook`` and ``tools/train.py`` add this hook.

    Args:
        patience (int): Maximum number of iterations in a row without a step, at least 0. Defaults
            to 50.
    """

    priority = 'LOW'  # after averages are swapped in, before anything is saved

    def __init__(self, patience: int = 50) -> None:
        if patience < 0:
            raise ValueError(f'expected a `patience` of at least 0, found {patience}')
        self.patience = patience
        self._skipped = 0
        self._scaled: list[OptimWrapper] = []
        self._scales: list[float] = []
        self._ignored: set[str] = set()
        self._stepped = False
        self._handles: list[Any] = []

    def before_train(self, runner: Runner) -> None:
        """Record buffers that are not finite by design, and whether steps may be skipped."""
        wrapper = runner.optim_wrapper
        parts = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
        self._scaled = [part for part in parts if getattr(part, 'loss_scaler', None) is not None
                        and part.loss_scaler.is_enabled()]
        self._skipped, self._scales = 0, [part.loss_scaler.get_scale() for part in self._scaled]
        for part in self._scaled:  # a scaler that skips a step does not call the optimizer
            self._handles.append(part.optimizer.register_step_post_hook(self._note))
        model = unwrap(runner.model)
        self._ignored = {name for name, value in model.named_buffers() if not _finite(value)}
        if hasattr(model, 'steps_may_be_skipped'):
            model.steps_may_be_skipped = bool(self._scaled)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any | None = None,
                         outputs: dict[str, Any] | None = None) -> None:
        """Check all terms of the loss.

        Raises:
            NonFiniteError: One is not finite, or the scaler has skipped too many steps.
        """
        losses = {name: value for name, value in (outputs or {}).items()
                  if 'loss' in name and not _finite(value)}
        scales = [part.loss_scaler.get_scale() for part in self._scaled]
        due = all(part.should_update() for part in self._scaled)
        # a scaler that skips a step lowers its scale, unless the scale is a constant
        skipped = any(now < then for now, then in zip(scales, self._scales)) or (
            bool(scales) and due and not self._stepped)
        self._scales, self._stepped = scales, False
        if skipped or losses:
            self._skipped += 1
        elif due:  # an iteration that only accumulates gradients proves nothing
            self._skipped = 0
        step = runner.iter + 1
        # with a scaler, a loss that overflows is first answered by a smaller scale
        if losses and (not scales or self._skipped > self.patience):
            # the terms first: their sum is a consequence
            name = min(losses, key=lambda name: name.rpartition('/')[2] == 'loss')
            raise NonFiniteError(f'expected finite losses at iteration {step}, found '
                                 f'{float(losses[name])} in `{name}`')
        if self._skipped > self.patience:
            raise NonFiniteError(f'expected finite gradients at iteration {step}, found none in '
                                 f'{self._skipped} iterations: the loss scale is {min(scales):g}')

    def after_train(self, runner: Runner) -> None:
        """Stop looking at the optimizers."""
        while self._handles:
            self._handles.pop().remove()

    def _note(self, *_: Any) -> None:
        self._stepped = True

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Check everything that is to be saved.

        Raises:
            NonFiniteError: A weight is not finite; nothing is written.
        """
        for part in ('state_dict', 'ema_state_dict'):
            for name, value in (checkpoint.get(part) or {}).items():
                # averaged copies have a prefix
                if not _finite(value) and not any(map(name.endswith, self._ignored)):
                    raise NonFiniteError(
                        f'expected finite weights to save at iteration {runner.iter}, found others '
                        f'in `{name}` of `{part}`')


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not torch.is_tensor(value) or not value.is_floating_point() or all_finite(value)
