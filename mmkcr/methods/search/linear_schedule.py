"""Scheduled values that change linearly over a run."""

import torch
from mmengine.runner import Runner
from torch import nn

from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS
from .scheduled import ScheduledHook


@HOOKS.register_module()
class LinearScheduleHook(ScheduledHook):
    r"""Sets an attribute of the model's modules as a function of the iteration alone.

    .. math:: v = v_0 + (v_1 - v_0) \min(1,\ t / (u T))

    with the iteration t, counted from 0, of T in the run. A buffer of that name is filled in place,
    so that a checkpoint holds the value. For Once-for-Both: the weight w(t) of the importance
    (``'importance_weight'``, 0.99 to 0.10 over 0.2 of the run in the public code, 1 to 0 over the
    whole of it in the paper) and the share of masked patches (``'mask_ratio'``, 0.01 to 0.25).

    Args:
        attribute (str): Name of the attribute; it is set on every module that has it.
        start (float): :math:`v_0`.
        end (float): :math:`v_1`.
        share (float): u, the share of the run until the end value is reached, within (0, 1].
            Defaults to 1.

    Raises:
        ValueError: ``share`` is out of range.
    """

    priority = 'ABOVE_NORMAL'

    def __init__(self, attribute: str, start: float, end: float, share: float = 1.) -> None:
        super().__init__(by_epoch=False)
        if not 0 < share <= 1:
            raise ValueError(f'expected `share` within (0, 1], found `{share}` in '
                             'LinearScheduleHook')
        self.attribute, self.start, self.end, self.share = attribute, start, end, share

    def value(self, step: int, steps: int) -> float:
        """The value at an iteration (from 0) of a run of ``steps``."""
        return self.start + (self.end - self.start) * min(1., step / (self.share * steps))

    def before_train(self, runner: Runner) -> None:
        """Refuse a model that has no such attribute."""
        super().before_train(runner)
        if not self._owners(runner.model):
            raise ValueError(f'expected a module with `{self.attribute}` in '
                             f'`{type(unwrap(runner.model)).__name__}`, found none for '
                             'LinearScheduleHook')

    def before_step(self, runner: Runner, step: int) -> None:
        """Set and log the iteration's value."""
        value = self.value(step, runner.max_iters)
        for module in self._owners(runner.model):
            held = getattr(module, self.attribute)
            if torch.is_tensor(held):
                held.fill_(value)
            else:
                setattr(module, self.attribute, value)
        runner.message_hub.update_scalar(f'train/{self.attribute}', value)

    def _owners(self, model: nn.Module) -> list[nn.Module]:
        return [module for module in model.modules() if hasattr(module, self.attribute)]
