"""Base of the hooks with a schedule."""

from abc import ABCMeta, abstractmethod
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop, Runner


class ScheduledHook(Hook, metaclass=ABCMeta):
    """A hook whose effect depends only on the epoch or the iteration.

    So it needs no state to resume. A *step* is an epoch with ``by_epoch=True`` and an iteration
    with ``by_epoch=False``, counted from 0 like ``runner.epoch`` and ``runner.iter``. An
    iteration-based run has no epochs to count.

    Args:
        by_epoch (bool): Whether the schedule counts epochs. Defaults to True.
    """

    def __init__(self, by_epoch: bool = True) -> None:
        self.by_epoch = by_epoch

    @abstractmethod
    def before_step(self, runner: Runner, step: int) -> None:
        """Apply the effect of a step (from 0), before its first batch is used."""

    @property
    def unit(self) -> str:
        """str: What a step is: 'epoch' or 'iteration'."""
        return 'epoch' if self.by_epoch else 'iteration'

    def step_of(self, runner: Runner) -> int:
        """The step that a run is in or about to begin."""
        return runner.epoch if self.by_epoch else runner.iter

    def begins(self, runner: Runner) -> bool:
        """Whether a step begins, as opposed to a run that resumes within an epoch."""
        return not self.by_epoch or runner.iter <= runner.epoch * len(runner.train_dataloader)

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
