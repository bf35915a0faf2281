"""Processes that load data, and how they end."""

from collections.abc import Iterator
from contextlib import contextmanager

from mmengine.runner import Runner
from mmengine.runner.base_loop import BaseLoop
from torch.utils.data import DataLoader


@contextmanager
def no_workers_left(runner: Runner) -> Iterator[None]:
    """End the workers of a run's loaders with the block, whatever ends it.

    PyTorch ends persistent workers when the last reference to their iterator goes. A runner and its
    loops refer to each other, so that comes too late, and five seconds a worker are lost. The
    loaders start new ones when they are iterated again.
    """
    try:
        yield
    finally:
        loops = [value for value in vars(runner).values() if isinstance(value, BaseLoop)]
        for loader in (value for loop in loops for value in vars(loop).values()):
            if isinstance(loader, DataLoader) and loader._iterator is not None:
                loader._iterator._shutdown_workers()
                loader._iterator = None
