"""MACs and parameters of any model of the three task families."""

from typing import Sequence

from torch import nn

from mmkcr.core import MacsReport, count_forward_macs
from mmkcr.models.utils import task_forward


def macs_report(model: nn.Module, input_shape: Sequence[int] = (3, 224, 224)) -> MacsReport:
    """Count the MACs of one image, attention products included.

    Args:
        model (nn.Module): A backbone, or a classifier, detector or segmentor;
            a task model is counted with its head.
        input_shape (Sequence[int]): (C, H, W). Defaults to (3, 224, 224).

    Returns:
        MacsReport: In total, by module and by operator.

    Raises:
        ValueError: ``input_shape`` is not three positive integers.
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(f'expected an input shape (C, H, W), found {tuple(input_shape)}')
    return count_forward_macs(model, task_forward(model, input_shape))


def count_macs(model: nn.Module, input_shape: Sequence[int] = (3, 224, 224)) -> int:
    """Total of :func:`macs_report`."""
    return macs_report(model, input_shape).total
