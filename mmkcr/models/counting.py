"""MACs and parameters of any model of the three task families."""

import warnings
from collections.abc import Sequence

from torch import nn

from mmkcr.core import CostModel, MacsReport, Structure, count_forward_macs
from mmkcr.core.weights import state_bytes
from .two_stage import MASKS, most_proposals
from .utils import (
    backbone_macs,
    counted_part,
    find_task,
    is_dense_task,
    macs_by_part,
    momentum_copies,
    online_params,
    search_space,
    task_forward,
    unwrap,
)


def macs_report(model: nn.Module, input_shape: Sequence[int] = (3, 224, 224)) -> MacsReport:
    """Count the MACs of one image, attention products included.

    Args:
        model (nn.Module): A backbone, or a classifier, detector or segmentor. A task
            model is counted with its head, a two-stage detector with its maximum number of
            proposals.
        input_shape (Sequence[int]): (C, H, W). Defaults to (3, 224, 224).

    Returns:
        MacsReport: In total, by module and by operator.

    Raises:
        ValueError: ``input_shape`` is not three positive integers, or the model does not run on
            such an image.
    """
    if len(input_shape) != 3 or min(input_shape) < 1:
        raise ValueError(f'expected an input shape (C, H, W), found {tuple(input_shape)}')
    model = unwrap(model)
    return count_forward_macs(model, task_forward(model, input_shape))


def count_macs(model: nn.Module, input_shape: Sequence[int] = (3, 224, 224)) -> int:
    """Total of :func:`macs_report`."""
    return macs_report(model, input_shape).total


def check_built(promises: Sequence[CostModel], promised: Sequence[int],
                input_shape: Sequence[int]) -> None:
    """Compare what a built network costs with what was promised of it.

    Args:
        promises (Sequence[CostModel]): MACs, then parameters and bytes, of the network before it
            was sliced; their ``model`` is now sliced.
        promised (Sequence[int]): What each said of the chosen sizes before the slicing: some count
            on the layers themselves.
        input_shape (Sequence[int]): (C, H, W).

    Raises:
        ValueError: It costs more.
    """
    model = promises[0].model
    copies = sum(map(state_bytes, momentum_copies(model)))
    counts = (count_macs(model, input_shape), online_params(model), state_bytes(model) - copies)
    for promise, most, found in zip(promises, promised, counts):
        if found > most:
            raise ValueError(f'expected {most} {promise.noun} of the compressed '
                             f'`{type(model).__name__}`, found {found}: please report this network')


#: MACs by part: (dense, slim).
Parts = dict[str, tuple[int, int]]


def count_parts(model: nn.Module, input_shape: Sequence[int]) -> dict[str, int]:
    """MACs of a whole task model by part.

    Args:
        model (nn.Module): Task model, not in a training wrapper.
        input_shape (Sequence[int]): (C, H, W).

    Returns:
        dict[str, int]: See :func:`~mmkcr.models.utils.macs_by_part`.
    """
    return macs_by_part(macs_report(model, input_shape), model)


def known_parts(model: nn.Module, input_shape: Sequence[int]) -> dict[str, int]:
    """As :func:`count_parts`, but empty, with a warning, if the whole model cannot be counted.

    Some detectors do not run without labels (Sparse R-CNN), and some segmentors not as tensors
    (PointRend). Their backbones may be compressed all the same.
    """
    try:
        return count_parts(model, input_shape)
    except ValueError as error:
        warnings.warn(f'MACs by part are not counted: {error}', stacklevel=2)
        return {}


def part_rows(parts: Parts) -> list[tuple[str, ...]]:
    """Rows of a table, G MACs: part, dense, slim, share; the whole model last."""
    whole = tuple(sum(side) for side in zip(*parts.values()))
    return [(name, f'{dense / 1e9:.4g}', f'{slim / 1e9:.4g}', f'{slim / dense:.1%}')
            for name, (dense, slim) in {**parts, 'whole model': whole}.items()]


def counted_proposals(model: nn.Module) -> str | None:
    """A sentence on the number of proposals in the MACs of a two-stage detector, None for others.

    Args:
        model (nn.Module): Task model.
    """
    count = most_proposals(find_task(model))
    return None if count is None else (
        f'The second stage is counted for {count} proposals (`test_cfg.rpn.max_per_img`), its '
        f'masks for {min(count, MASKS)}.')


def note_backbone_macs(structure: Structure, subnet: nn.Module, part: str | None) -> None:
    """Record which part a structure's MACs count, and how many are the backbone's.

    These are checked when a model is built, possibly with another head.

    Args:
        structure (Structure): With ``macs``; changed in place.
        subnet (nn.Module): Bare backbone or task model.
        part (str, optional): See :func:`~mmkcr.models.utils.counted_part`.
    """
    if search_space(subnet).host is subnet and is_dense_task(subnet):
        structure.macs['part'] = 'model'  # a whole model has no separate backbone
    elif counted_part(subnet, part) is not subnet:
        structure.macs['part'] = 'backbone'
    else:
        structure.macs['backbone'] = backbone_macs(search_space(subnet).host,
                                                   structure.macs['input_shape'])
