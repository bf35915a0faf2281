"""Losses that are no means over images, such as ratios of sums, in several processes."""

from mmengine.dist import all_reduce
from torch import Tensor


def mean_over_processes(value: Tensor) -> Tensor:
    """The mean of a value over processes, with the gradient through this process's part.

    A function of it has the same value on all processes, and the mean of its gradients over them,
    which is what a training takes, is the gradient of one process with all of the batch.
    """
    mean = value.detach().clone()
    all_reduce(mean, 'mean')
    return mean + (value - value.detach())
