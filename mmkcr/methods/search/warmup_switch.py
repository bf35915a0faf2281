"""Switches regularisers on after a warm-up."""

from collections.abc import Sequence

from mmengine.runner import Runner
from torch import nn

from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS
from .scheduled import ScheduledHook


def find_regularizer(model: nn.Module, name: str) -> nn.Module:
    """Find a regulariser of a ``RegularizedModel``, possibly wrapped, by its key.

    Raises:
        ValueError: The model has no regulariser of that name.
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
    ``runner.epoch >= begin``. In an iteration-based run (``by_epoch=False``) it is off in
    iterations 0 to ``begin - 1`` and on when ``runner.iter >= begin``. In the ``hooks`` of
    ``compression`` a share such as ``begin='30%'`` is at most the run's last epoch, which has
    the term; a run of one epoch has it from the start.

    Args:
        begin (int): t_warm, the number of epochs, or iterations, without the term. As long as
            the run or longer: the term is never on, which is logged. Defaults to 90 (of 300
            epochs; v1 and v2).
        losses (Sequence[str]): Names in ``RegularizedModel.regularizers``. Defaults to ('kcr', ).
        by_epoch (bool): Whether ``begin`` counts epochs. Defaults to True.

    Raises:
        ValueError: ``begin`` is negative.
    """

    priority = 'ABOVE_NORMAL'

    def __init__(self,
                 begin: int = 90,
                 losses: str | Sequence[str] = ('kcr', ),
                 by_epoch: bool = True) -> None:
        super().__init__(by_epoch)
        if begin < 0:
            raise ValueError(f'expected begin >= 0 {self.unit}s, found `{begin}` in '
                             'WarmupSwitchHook')
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
