"""Hooks with a schedule."""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop, Runner
from torch import nn

from mmkcr.core.gate import NoisyGate, resample_gates
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS


class ScheduledHook(Hook, metaclass=ABCMeta):
    """A hook whose effect depends only on the epoch or the iteration.

    So it needs no state to resume. A *step* is an epoch with ``by_epoch=True``, else an iteration,
    counted from 0; an iteration-based run has no epochs to count.
    """

    priority = 'ABOVE_NORMAL'

    def __init__(self, by_epoch: bool = True) -> None:
        self.by_epoch = by_epoch
        self.unit = 'epoch' if by_epoch else 'iteration'

    @abstractmethod
    def before_step(self, runner: Runner, step: int) -> None:
        """Apply the effect of a step (from 0), before its first batch is used."""

    def step_of(self, runner: Runner) -> int:
        """The step that a run is in or about to begin."""
        return runner.epoch if self.by_epoch else runner.iter

    def modules(self, runner: Runner, what: str,
                wanted: Callable[[nn.Module], bool]) -> list[nn.Module]:
        """Modules of the model that the hook acts on.

        Args:
            runner (Runner): Of the run.
            what (str): Noun for the modules, for the message.
            wanted (Callable): Whether the hook acts on a module.

        Raises:
            ValueError: The model has none.
        """
        modules = [module for module in runner.model.modules() if wanted(module)]
        if not modules:
            raise ValueError(f'expected a model with at least one {what} for '
                             f'{type(self).__name__}, found none in '
                             f'`{type(unwrap(runner.model)).__name__}`')
        return modules

    def before_train(self, runner: Runner) -> None:
        """Refuse to count epochs in a run that has none."""
        if self.by_epoch and isinstance(runner.train_loop, IterBasedTrainLoop):
            raise ValueError(f'expected `by_epoch=False` of {type(self).__name__} in a run of '
                             f'`{type(runner.train_loop).__name__}`, found `by_epoch=True`')

    def before_train_epoch(self, runner: Runner) -> None:
        """Begin an epoch."""
        if self.by_epoch:
            self.before_step(runner, runner.epoch)

    def before_train_iter(self, runner: Runner, batch_idx: int,
                          data_batch: Any | None = None) -> None:
        """Begin an iteration."""
        if not self.by_epoch:
            self.before_step(runner, runner.iter)


@HOOKS.register_module()
class TemperatureDecayHook(ScheduledHook):
    r"""Sets the temperature of every gate as a function of the step alone (KCR section 3.1).

    .. math:: \tau = \max(\tau_{\min},\ \tau_0\, \gamma^{\lfloor t / T \rfloor})

    with the step t, counted from 0. The value is logged as ``temperature``.

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
        by_epoch (bool): See :class:`ScheduledHook`. Defaults to True.
    """

    def __init__(self, initial: float = 4.5, decay: float | None = None, minimum: float = 1e-3,
                 interval: int = 1, until: int | None = None, by_epoch: bool = True) -> None:
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

    def before_step(self, runner: Runner, step: int) -> None:
        """Set the step's temperature, and log it once."""
        value = self.temperature(step)
        for gate in self.modules(runner, 'gate that has a `temperature`', lambda module: (
                isinstance(module, NoisyGate) and hasattr(module, 'temperature'))):
            gate.temperature = value
        # a run that resumes within an epoch has logged it
        if not self.by_epoch or runner.iter <= runner.epoch * len(runner.train_dataloader):
            runner.message_hub.update_scalar('train/temperature', value)


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
    """

    def __init__(self, attribute: str, start: float, end: float, share: float = 1.) -> None:
        super().__init__(by_epoch=False)
        if not 0 < share <= 1:
            raise ValueError(f'expected `share` within (0, 1], found `{share}` in '
                             'LinearScheduleHook')
        self.attribute, self.start, self.end, self.share = attribute, start, end, share

    def before_step(self, runner: Runner, step: int) -> None:
        """Set and log the iteration's value."""
        passed = min(1., step / (self.share * runner.max_iters))
        value = self.start + (self.end - self.start) * passed
        for module in self.modules(runner, f'module with `{self.attribute}`',
                                   lambda module: hasattr(module, self.attribute)):
            held = getattr(module, self.attribute)
            if torch.is_tensor(held):
                held.fill_(value)
            else:
                setattr(module, self.attribute, value)
        runner.message_hub.update_scalar(f'train/{self.attribute}', value)


@HOOKS.register_module()
class GateNoiseHook(ScheduledHook):
    """Draws the noise of every gate in a retraining, for example of the QK masks (DCS, 3.1).

    In a search the model itself does so. The noise is a function of ``seed`` and the iteration.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(by_epoch=False)
        self.seed = seed

    def before_train(self, runner: Runner) -> None:
        """Refuse a model without gates."""
        self.modules(runner, 'gate', lambda module: isinstance(module, NoisyGate))

    def before_step(self, runner: Runner, step: int) -> None:
        """Draw the noise of an iteration."""
        resample_gates(runner.model, self.seed, step)


def find_regularizer(model: nn.Module, name: str) -> nn.Module:
    """Find a regulariser of a ``RegularizedModel``, possibly wrapped, by its key.

    Raises:
        ValueError: The model has no regulariser of this name.
    """
    model = unwrap(model)
    regularizers = getattr(model, 'regularizers', {})
    if name not in regularizers:
        raise ValueError(f'expected one of the regularizers {sorted(regularizers)} of '
                         f'{type(model).__name__}, found `{name}`')
    return regularizers[name]


@HOOKS.register_module()
class WarmupSwitchHook(ScheduledHook):
    """Turns regularisers on for epochs > t_warm (KCR algorithm 1, line 16).

    The paper counts epochs from 1, the runner from 0: a term is on when
    ``runner.epoch >= begin``, or ``runner.iter >= begin`` in an iteration-based run. In the
    ``hooks`` of ``compression`` a share such as ``begin='30%'`` is at most the run's last epoch,
    which has the term; a run of one epoch has it from the start.

    Args:
        begin (int): t_warm, the number of epochs, or iterations, without the term. As long as
            the run or longer: the term is never on, which is logged. Defaults to 90 (of 300
            epochs; v1 and v2).
        losses (Sequence[str]): Names in ``RegularizedModel.regularizers``. Defaults to ('kcr', ).
        by_epoch (bool): See :class:`ScheduledHook`. Defaults to True.
    """

    def __init__(self, begin: int = 90, losses: str | Sequence[str] = ('kcr', ),
                 by_epoch: bool = True) -> None:
        super().__init__(by_epoch)
        if begin < 0:
            raise ValueError(f'expected begin >= 0, found `{begin}` in WarmupSwitchHook')
        self.begin = begin
        self.losses = (losses, ) if isinstance(losses, str) else tuple(losses)

    def before_train(self, runner: Runner) -> None:
        """Switch for the first step, and refuse unknown names before any work."""
        super().before_train(runner)
        self.before_step(runner, self.step_of(runner))
        length = runner.max_epochs if self.by_epoch else runner.max_iters
        if self.begin >= length:  # as in a shortened run
            runner.logger.warning(f'{", ".join(self.losses)}: the term begins in {self.unit} '
                                  f'{self.begin} (from 0) of a run of {length}, so it is never on')

    def before_step(self, runner: Runner, step: int) -> None:
        """Switch the terms on or off for this step."""
        for name in self.losses:
            find_regularizer(runner.model, name).active = step >= self.begin
