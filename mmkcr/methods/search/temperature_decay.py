"""Temperature of the relaxed gates over a search."""

from mmengine.runner import Runner
from torch import nn

from mmkcr.core.gate import NoisyGate
from mmkcr.registry import HOOKS
from .scheduled import ScheduledHook


@HOOKS.register_module()
class TemperatureDecayHook(ScheduledHook):
    r"""Sets the temperature of every gate as a function of the step alone (KCR section 3.1).

    .. math:: \tau = \max(\tau_{\min},\ \tau_0\, \gamma^{\lfloor t / T \rfloor})

    with the step t, an epoch or an iteration, counted from 0, and T the interval. The
    value is logged as ``temperature``. In an iteration-based run T replaces the
    length of an epoch: the value is :math:`\tau_0` in iterations 0 to T - 1,
    :math:`\tau_0 \gamma` in T to 2T - 1, and so on.

    Differentiable subset pruning specifies the end instead of :math:`\gamma`: log-linear from
    :math:`\tau_0` to :math:`\tau_{\min}` in n intervals, then constant. This is the same with
    :math:`\gamma = (\tau_{\min} / \tau_0)^{1/n}`; its values are 1, 1e-3 and 30 epochs.

    Args:
        initial (float): :math:`\tau_0`. Defaults to 4.5.
        decay (float, optional): :math:`\gamma`, in (0, 1]. Defaults to 0.95, or to what
            ``until`` gives.
        minimum (float): :math:`\tau_{\min}`, above 0: the gates divide by it. Defaults to 1e-3.
        interval (int): T, steps between decays. Defaults to 1.
        until (int, optional): n, intervals until the minimum is reached. Defaults to
            None: as ``decay`` says.
        by_epoch (bool): Whether a step is an epoch. Defaults to True.

    Raises:
        ValueError: An argument is out of range.
    """

    priority = 'ABOVE_NORMAL'

    def __init__(self,
                 initial: float = 4.5,
                 decay: float | None = None,
                 minimum: float = 1e-3,
                 interval: int = 1,
                 until: int | None = None,
                 by_epoch: bool = True) -> None:
        super().__init__(by_epoch)
        if until is None:
            decay = 0.95 if decay is None else decay
            wrong = not 0 < decay <= 1
        else:
            wrong = decay is not None or until < 1
        if wrong or interval < 1 or not 0 < minimum <= initial:
            raise ValueError('expected 0 < `minimum` <= `initial`, `interval` >= 1, and a `decay` '
                             f'in (0, 1] or `until` >= 1, found {minimum}, {initial}, {interval}, '
                             f'{decay} and {until} in TemperatureDecayHook')
        self.initial, self.minimum, self.interval = initial, minimum, interval
        # tau_0 gamma^n = tau_min
        self.decay = decay if until is None else (minimum / initial)**(1 / until)

    def temperature(self, step: int) -> float:
        """The temperature of a step (from 0)."""
        return max(self.minimum, self.initial * self.decay**(step // self.interval))

    def before_train(self, runner: Runner) -> None:
        """Refuse a model without gates to anneal."""
        super().before_train(runner)
        if not self._gates(runner.model):
            raise ValueError('expected a model with at least one gate that has a `temperature`, '
                             f'found none in `{type(runner.model).__name__}` for '
                             'TemperatureDecayHook')

    def before_step(self, runner: Runner, step: int) -> None:
        """Set the step's temperature, and log it once."""
        value = self.temperature(step)
        for gate in self._gates(runner.model):
            gate.temperature = value
        if self.begins(runner):
            runner.message_hub.update_scalar('train/temperature', value)

    @staticmethod
    def _gates(model: nn.Module) -> list[NoisyGate]:
        return [module for module in model.modules()
                if isinstance(module, NoisyGate) and hasattr(module, 'temperature')]
