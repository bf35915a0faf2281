"""Processes that ``torchrun`` has started and that share one piece of work; one process is all."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed


def join_torchrun() -> None:
    """Join the processes that ``torchrun`` started, if it did; GPUs by NCCL, others by gloo."""
    if int(os.environ.get('WORLD_SIZE', 1)) < 2 or distributed.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
    distributed.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')


def find_rank() -> int:
    """Number of this process, 0 and up; 0 alone writes files and prints."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def count_processes() -> int:
    """Number of processes that share the work."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def sum_over_processes(tensor: Tensor) -> None:
    """Replace a tensor, in place, by its sum over the processes, the same bits in each."""
    if count_processes() == 1:
        return
    # NCCL takes tensors on GPUs alone
    there = tensor.cuda() if distributed.get_backend() == 'nccl' else tensor
    distributed.all_reduce(there)
    if there is not tensor:
        tensor.copy_(there)


def ask_first_process(compute: Callable[[], Any]) -> Any:
    """Call a function in the first process alone, and return its result in all processes.

    Args:
        compute (Callable): Takes nothing; its result can be pickled.

    Raises:
        Exception: The error that the function raised is raised in all processes.
    """
    if count_processes() == 1:
        return compute()
    shared: list[Any] = [None, None]
    if find_rank() == 0:
        try:
            shared[0] = compute()
        except Exception as error:
            shared[1] = error
    distributed.broadcast_object_list(shared)
    if shared[1] is not None:
        raise shared[1]
    return shared[0]
