"""Batches that are a function of the seed and of the position in the data stream.

MMEngine seeds a data-loading worker once, when it starts. Here the batch sampler numbers the draws,
and the random states are set from that number just before a sample is loaded: neither the number of
workers or ranks, nor the point where a run was stopped matters.
"""

import copy
import hashlib
import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.runner.base_loop import BaseLoop
from torch.utils.data import DataLoader, IterableDataset, Sampler


def derive_seed(*parts: Any) -> int:
    """A seed within [0, 2**63) that depends on numbers and names, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'big') >> 1


def seed_everything(seed: int, devices: bool = True) -> None:
    """Seed Python, NumPy and PyTorch by a number within [0, 2**63), and accelerators if asked."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if devices and torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # torch.manual_seed takes 2 ms to queue the call for devices that are not there
        torch.default_generator.manual_seed(seed)


class DrawnBatch(list):
    """Indices of a batch; whoever goes through them sets the random states before each.

    PyTorch loads the samples one by one in that loop, in the main process or in a worker. The seeds
    depend on a key and on numbers of the draws, one an index, see :func:`derive_seed`.
    """

    def __init__(self, indices: Sequence[Any], key: tuple, numbers: range) -> None:
        super().__init__(indices)
        self.key, self.numbers = key, numbers

    def __iter__(self) -> Iterator:
        for index, number in zip(super().__iter__(), self.numbers):
            seed_everything(derive_seed(*self.key, number), devices=False)
            yield index

    def __reduce__(self) -> tuple:
        # a slice is a plain list; to go through the indices here would set the random states
        return DrawnBatch, (self[:], self.key, self.numbers)


class SeededBatches(Sampler):
    """A batch sampler whose samples have seeds; its next pass may be the rest of an earlier pass.

    The number of a sample is its position among the draws of all ranks (ranks interleave, as in
    ``DefaultSampler`` and ``InfiniteSampler``). A whole pass begins with the containers, such as
    buckets by shape, that the batch sampler had when it was given. Its attributes are this one's.
    """

    def __init__(self, batches: Sampler) -> None:
        self.batches = batches
        self.key: tuple | None = None  # without one the samples have no seeds
        self.epoch = 0
        self.rest: Iterator | None = None
        self._fresh = {name: copy.deepcopy(value) for name, value in vars(batches).items()
                       if isinstance(value, (list, dict, set, deque))}

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__') or 'batches' not in vars(self):
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list]:
        # a generator: PyTorch asks twice for an iterator and uses the second
        rest, self.rest = self.rest, None
        yield from self._pass() if rest is None else rest

    def _pass(self) -> Iterator[list]:
        vars(self.batches).update(copy.deepcopy(self._fresh))
        if self.key is None:
            yield from self.batches
            return
        key, count, (rank, processes) = (*self.key, self.epoch), 0, get_dist_info()
        # for samplers that shuffle by the global random state
        seed_everything(derive_seed(*key))
        for indices in self.batches:
            first = count * processes + rank
            yield DrawnBatch(indices, key, range(first, first + len(indices) * processes,
                                                 processes))
            count += len(indices)


def set_epoch(loader: DataLoader, epoch: int) -> None:
    """Choose the epoch (from 0) whose order and seeds come next; the sampler need not know it."""
    _make_seeded(loader).epoch = epoch
    sampler = source_sampler(loader)
    if hasattr(sampler, 'set_epoch'):
        sampler.set_epoch(epoch)


def source_sampler(loader: DataLoader) -> Sampler:
    """The innermost sampler, which draws a loader's indices, under any batch sampler."""
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    sampler = sampler.batches if isinstance(sampler, SeededBatches) else sampler
    # batch samplers, and samplers that wrap another, hold it as `sampler`
    while not hasattr(sampler, 'dataset') and hasattr(sampler, 'sampler'):
        sampler = sampler.sampler
    return sampler


def make_reproducible(loader: DataLoader, seed: int, stream: str) -> None:
    """Make the batches of a loader a function of a seed, the epoch and the position, in place.

    The epoch is set by :func:`set_epoch`. Transforms that remember earlier samples, such as mmdet's
    ``CachedMosaic``, remain dependent on their worker. Samples of a data set that loads a batch at
    once (``__getitems__``) share one seed.

    Args:
        loader (DataLoader): Of a map-style data set.
        seed (int): Equal on every rank.
        stream (str): Name that sets this loader apart from the others of the run.

    Raises:
        TypeError: The data set is iterable.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError('expected a map-style dataset for an exact resume, found the iterable '
                        f'`{type(loader.dataset).__name__}` in the {stream} loader')
    _make_seeded(loader).key = (seed, stream)


def _make_seeded(loader: DataLoader) -> SeededBatches:
    """The loader's batch sampler; one of another class is replaced by a :class:`SeededBatches`."""
    if not isinstance(loader.batch_sampler, SeededBatches):
        # PyTorch forbids to set the attribute, as a loader that iterates would not know of it
        vars(loader)['batch_sampler'] = SeededBatches(loader.batch_sampler)
        loader._iterator = None  # of workers that were started with the other
    return loader.batch_sampler


def skip_batches(loader: DataLoader, number: int) -> int:
    """Make a loader's next pass begin behind a number of batches, of which no sample is loaded.

    It tells how many there were: fewer than ``number`` at the end of an epoch.
    """
    sampler = _make_seeded(loader)
    sampler.rest = None  # of a pass that was never begun
    batches = iter(sampler)
    skipped = sum(1 for _ in itertools.islice(batches, number))
    sampler.rest = batches if number else None
    return skipped


def loaders_of(loop: BaseLoop | None) -> dict[str, DataLoader]:
    """The loaders of a loop, if a run has it, by attribute: the training of a search has two."""
    attributes = {} if loop is None else vars(loop)
    return {name: value for name, value in attributes.items() if isinstance(value, DataLoader)}


class EndlessBatches:
    """The batches of a loader without end, as an iteration-based run takes them.

    To go to a position it draws indices but loads no sample; MMEngine's own iterator loads every
    batch that it skips, unless the batches are plain slices of an ``InfiniteSampler``. A sampler
    that ends is restarted with the next epoch's order. The batches of several loaders, each with
    its own epochs, come together in a tuple.
    """

    def __init__(self, *loaders: DataLoader) -> None:
        self.loaders = loaders
        self.skip_iter(0)

    def __iter__(self) -> 'EndlessBatches':
        return self

    def __next__(self) -> Any:
        batches = tuple(map(next, self._streams))
        return batches if len(batches) > 1 else batches[0]

    def skip_iter(self, num_iters: int) -> None:
        """Go to a position: batches of this rank, counted from the very beginning."""
        self._streams = [_batches_from(loader, num_iters) for loader in self.loaders]


def _batches_from(loader: DataLoader, position: int) -> Iterator[Any]:
    for epoch in itertools.count():
        set_epoch(loader, epoch)
        passed = skip_batches(loader, position)
        position -= passed
        # also of an epoch that ends at the position: nothing is left of it
        if position == 0:
            for batch in loader:
                passed += 1
                yield batch
        if passed == 0:
            raise ValueError('expected at least one batch in an epoch, found none: the batches '
                             f'are larger than the {len(loader.dataset)} samples')
