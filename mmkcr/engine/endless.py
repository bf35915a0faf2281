"""Endless batches, from any position on."""

from typing import Any, Iterator, Tuple

from torch.utils.data import DataLoader

from .reproducible import continue_with, source_sampler


class EndlessBatches:
    """The batches of a loader without end, as an iteration-based run takes them.

    It works like MMEngine's own iterator, with one difference. Going to a position takes the same
    path for any sampler, batch sampler and number of workers; it draws indices but loads no
    sample. MMEngine loads every batch that it skips, unless the batches are plain slices of an
    ``InfiniteSampler``.

    A sampler that ends is restarted with the next epoch's order.

    Args:
        loader (DataLoader): Loader of a map-style dataset.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._iterator: Any = None
        self._epoch = 0

    def __iter__(self) -> 'EndlessBatches':
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self.loader)
        try:
            return next(self._iterator)
        except StopIteration:
            self._begin_epoch(self._epoch + 1)
            self._iterator = iter(self.loader)
            return next(self._iterator)

    def skip_iter(self, num_iters: int) -> None:
        """Go to a position, counted from the very beginning.

        Args:
            num_iters (int): Batches to skip on this rank.
        """
        self._begin_epoch(0)
        continue_with(self.loader, None)
        indices = iter(self.loader.batch_sampler)
        for _ in range(num_iters):
            indices = self._pass_over(indices)
        # the next `iter(loader)` takes the rest of this very pass
        continue_with(self.loader, indices)
        self._iterator = None

    def _pass_over(self, indices: Iterator) -> Iterator:
        try:
            next(indices)
        except StopIteration:
            self._begin_epoch(self._epoch + 1)
            indices = iter(self.loader.batch_sampler)
            next(indices)
        return indices

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        sampler = source_sampler(self.loader)
        if hasattr(sampler, 'set_epoch'):
            sampler.set_epoch(epoch)


class PairedBatches(EndlessBatches):
    """Two streams of batches that advance together.

    Args:
        first (DataLoader): The first.
        second (DataLoader): The second.
    """

    def __init__(self, first: DataLoader, second: DataLoader) -> None:
        super().__init__(first)
        self.second = EndlessBatches(second)

    def __next__(self) -> Tuple[Any, Any]:
        return super().__next__(), next(self.second)

    def skip_iter(self, num_iters: int) -> None:
        """Skip batches of both streams, see :meth:`EndlessBatches.skip_iter`."""
        super().skip_iter(num_iters)
        self.second.skip_iter(num_iters)
