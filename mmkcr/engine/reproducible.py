"""Randomness of data loading as a function of the position in the data stream.

MMEngine seeds a data-loading worker once, when it starts. A sample's augmentation then depends on
which worker loads it and on how many it loaded before, and a resumed run, which starts new
workers, augments differently. Here the sampler numbers its draws, and the random states are set
from that number just before the sample is loaded. So neither the number of workers, nor the
number of ranks, nor the point where a run was stopped matters.
"""

import copy
import hashlib
import operator
import random
from collections import deque
from functools import lru_cache
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np
import torch
from mmengine.dist import all_gather, all_reduce, get_dist_info
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Sampler


def derive_seed(*parts: Any) -> int:
    """Derive an independent seed from numbers and names.

    Args:
        *parts: What the seed depends on; equal parts give an equal seed, on
            every machine.

    Returns:
        int: A seed within [0, 2**63).
    """
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, 'big') >> 1


def seed_everything(seed: int, devices: bool = True) -> None:
    """Seed Python, NumPy and PyTorch.

    Args:
        seed (int): Within [0, 2**63).
        devices (bool): Whether to seed accelerators too. Defaults to True.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if devices and torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # torch.manual_seed takes 2 ms to queue the call for devices that are not there
        torch.default_generator.manual_seed(seed)


class _Drawn:
    """The index of a sample together with the seed of this one draw of it.

    Args:
        value (int | tuple): The index.
        seed (int): Seed for loading the sample, see :func:`derive_seed`.
    """

    seed: int
    plain: type

    def __new__(cls, value: Any, seed: int) -> '_Drawn':
        index = super().__new__(cls, value)
        index.seed = seed
        return index

    def __reduce__(self) -> Tuple:
        # sent to workers by pickle, which would call `__new__` without the seed
        return type(self), (self.plain(self), self.seed)


class DrawnIndex(_Drawn, int):
    """An index that is a number."""

    plain = int


class DrawnIndices(_Drawn, tuple):
    """An index that is a tuple, such as a video and a frame of it."""

    plain = tuple


# The three classes below are templates. `extend_in_place` copies their methods into a subclass of
# one object's class. There `host_of(self)` does what `super()` does in ordinary classes, which
# would look for the template among the bases.


def host_of(extended: Any) -> Any:
    """What ``super()`` is in the methods of a template of :func:`extend_in_place`."""
    return super(type(extended), extended)


class _NumberedSampler:
    """A sampler that yields :class:`DrawnIndex`, or :class:`DrawnIndices`.

    The number of a sample is its position among the draws of all ranks (ranks
    interleave, as in ``DefaultSampler`` and ``InfiniteSampler``). So one
    process and several with the same global batch see the same samples.
    """

    _stream: Tuple = ()
    _draw: int = 0

    def __iter__(self) -> Iterator[DrawnIndex]:
        key, (rank, world_size) = (*self._stream, self._draw), get_dist_info()
        # for samplers that shuffle by the global random state
        seed_everything(derive_seed(*key))
        for count, index in enumerate(host_of(self).__iter__()):
            seed = derive_seed(*key, count * world_size + rank)
            yield DrawnIndices(index, seed) if isinstance(index, tuple) else \
                DrawnIndex(operator.index(index), seed)

    def set_epoch(self, epoch: int) -> None:
        self._draw = epoch
        if hasattr(host_of(self), 'set_epoch'):
            host_of(self).set_epoch(epoch)


class _ContinuedBatchSampler:
    """A batch sampler whose next pass may be the rest of an earlier one.

    A whole pass begins with the containers, such as buckets by shape, that the sampler had before
    its first one: a pass that was left early does not change the next.
    """

    _rest: Optional[Iterator] = None
    _fresh: Dict[str, Any]

    def __iter__(self) -> Iterator:
        # a generator: PyTorch asks twice for an iterator and uses the second
        rest, self._rest = self._rest, None
        if rest is None:
            vars(self).update(copy.deepcopy(self._fresh))
            rest = host_of(self).__iter__()
        yield from rest


class _SeededDataset:
    """A dataset that sets the random states before it loads a drawn sample."""

    __getitems__ = None  # PyTorch's batched access would load without seeding

    def __getitem__(self, index: Union[int, tuple]) -> Any:
        if isinstance(index, _Drawn):
            seed_everything(index.seed, devices=False)
            index = index.plain(index)
        return host_of(self).__getitem__(index)


def _reduce_extended(extended: Any, protocol: int) -> Tuple:
    """Pickle by the original class and the templates, as the subclass has no name."""
    reduced = host_of(extended).__reduce_ex__(max(protocol, 2))
    return (_new_extended, (type(extended).__base__, type(extended)._templates), *reduced[2:])


@lru_cache(maxsize=None)
def _extended_class(base: type, templates: Tuple[type, ...]) -> type:
    own = {name: value for template in templates for name, value in vars(template).items()
           if name not in ('__dict__', '__weakref__', '__module__', '__doc__')}
    return type(base.__name__, (base, ), {**own, '_templates': templates,
                                          '__module__': base.__module__, '__doc__': base.__doc__,
                                          '__reduce_ex__': _reduce_extended})


def _new_extended(base: type, templates: Tuple[type, ...]) -> Any:
    return object.__new__(_extended_class(base, templates))


def extend_in_place(target: Any, *templates: type) -> None:
    """Extend one object's class in place, once.

    It is done in place because batch samplers, iterators and hooks hold references to the object.
    A subclass, because the hosts ask ``isinstance``: nothing else about the object changes.

    Args:
        target (Any): The object.
        *templates (type): Classes whose methods it gets; there :func:`host_of` is ``super()``.
    """
    if '_templates' not in vars(type(target)):
        target.__class__ = _extended_class(type(target), templates)


def source_sampler(loader: DataLoader) -> Sampler:
    """The sampler that draws a loader's indices, under any batch sampler.

    Args:
        loader (DataLoader): A loader of a map-style dataset.

    Returns:
        Sampler: Its innermost sampler.
    """
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    # batch samplers, and samplers that wrap another, hold it as `sampler`
    while not hasattr(sampler, 'dataset') and hasattr(sampler, 'sampler'):
        sampler = sampler.sampler
    return sampler


def make_reproducible(loader: DataLoader, seed: int, stream: str) -> None:
    """Make what a loader yields a function of ``seed``, epoch and position.

    Idempotent. The sampler must be advanced by ``set_epoch`` (it gets the
    method if it has none). Transforms that remember earlier samples, such as
    mmdet's ``CachedMosaic``, remain dependent on their worker.

    Args:
        loader (DataLoader): Changed in place, before it is iterated.
        seed (int): The run's seed, the same on every rank.
        stream (str): Name that sets this loader apart from the run's others.

    Raises:
        TypeError: The dataset is iterable-style, so samples have no index.
    """
    if isinstance(loader.dataset, IterableDataset):
        raise TypeError('expected a map-style dataset for an exact resume, found the iterable '
                        f'`{type(loader.dataset).__name__}` in the {stream} loader')
    sampler = source_sampler(loader)
    extend_in_place(sampler, _NumberedSampler)
    sampler._stream = (seed, stream)
    extend_in_place(loader.dataset, _SeededDataset)
    if loader.batch_sampler is not None:
        _make_continuable(loader.batch_sampler)


def _make_continuable(batches: Sampler) -> None:
    """Extend a batch sampler, before its first pass."""
    if '_fresh' not in vars(batches):
        extend_in_place(batches, _ContinuedBatchSampler)
        batches._fresh = {name: copy.deepcopy(value) for name, value in vars(batches).items()
                          if isinstance(value, (list, dict, set, deque))}


def continue_with(loader: DataLoader, batches: Optional[Iterator]) -> None:
    """Make a loader's next pass go on with an iterator of its batch sampler.

    Args:
        loader (DataLoader): Changed in place, between two passes.
        batches (Iterator, optional): ``iter(loader.batch_sampler)``, advanced to where
            the pass shall begin; None for a whole pass.
    """
    _make_continuable(loader.batch_sampler)
    loader.batch_sampler._rest = batches


def train_loaders(runner: Runner) -> Dict[str, DataLoader]:
    """The loaders of a run's training loop, by attribute: a search has two."""
    return {name: value for name, value in vars(runner.train_loop).items()
            if isinstance(value, DataLoader)}


def gather_gradients(model: nn.Module) -> Dict[str, List[Tensor]]:
    """Collect the gradients of every process, where any process has some.

    Args:
        model (nn.Module): The same on every process.

    Returns:
        dict[str, list[Tensor]]: On the CPU, by parameter, one gradient per process; zeros where a
        process has none.
    """
    named = {name: param for name, param in model.named_parameters() if param.requires_grad}
    present = torch.tensor([param.grad is not None for param in named.values()], dtype=torch.int)
    # all ranks must agree on the parameters that are gathered, or the collectives would not match
    all_reduce(present, 'max')
    return {name: [grad.cpu() for grad in all_gather(
                torch.zeros_like(param) if param.grad is None else param.grad)]
            for (name, param), there in zip(named.items(), present.tolist()) if there}


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace gradients by their mean over ranks, in one message.

    Args:
        parameters (Sequence[nn.Parameter]): The same on every rank.
    """
    grads = [param.grad for param in parameters if param.grad is not None]
    if not grads:
        return
    flat = torch.cat([grad.flatten() for grad in grads])
    all_reduce(flat, op='mean')
    for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(mean.view_as(grad))
