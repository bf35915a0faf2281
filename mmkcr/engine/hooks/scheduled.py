"""What hooks with a schedule have in common."""

from abc import ABCMeta, abstractmethod
from typing import Any, Optional

from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop, Runner


class ScheduledHook(Hook, metaclass=ABCMeta):
    """A hook whose effect is a function of the epoch, or of the iteration, alone.

    So a resumed run needs no state of it. A *step* is an epoch with
    ``by_epoch=True`` and an iteration with ``by_epoch=False``, counted from 0
    as ``runner.epoch`` and ``runner.iter`` are; in an iteration-based run
    there are no epochs to count.

    Args:
        by_epoch (bool): Whether the schedule counts epochs. Defaults to True.
    """

    def __init__(self, by_epoch: bool = True) -> None:
        self.by_epoch = by_epoch

    @abstractmethod
    def before_step(self, runner: Runner, step: int) -> None:
        """Bring about what belongs to a step, before its first batch is used.

        Args:
            runner (Runner): The runner.
            step (int): Epoch or iteration, from 0.
        """

    @property
    def unit(self) -> str:
        """str: What a step is: 'epoch' or 'iteration'."""
        return 'epoch' if self.by_epoch else 'iteration'

    def step_of(self, runner: Runner) -> int:
        """The step that a run is in, or about to begin."""
        return runner.epoch if self.by_epoch else runner.iter

    def begins(self, runner: Runner) -> bool:
        """Whether a step begins, or goes on in a run that was resumed within an epoch."""
        return not self.by_epoch or runner.iter <= runner.epoch * len(runner.train_dataloader)

    def before_train(self, runner: Runner) -> None:
        """Refuse to count epochs where there are none.

        Raises:
            ValueError: ``by_epoch=True`` in an iteration-based run.
        """
        if self.by_epoch and isinstance(runner.train_loop, IterBasedTrainLoop):
            raise ValueError(f'expected `by_epoch=False` of {type(self).__name__} in a run of '
                             f'`{type(runner.train_loop).__name__}`, found `by_epoch=True`')

    def before_train_epoch(self, runner: Runner) -> None:
        """Begin an epoch."""
        if self.by_epoch:
            self.before_step(runner, runner.epoch)

    def before_train_iter(self, runner: Runner, batch_idx: int,
                          data_batch: Optional[Any] = None) -> None:
        """Begin an iteration."""
        if not self.by_epoch:
            self.before_step(runner, runner.iter)
