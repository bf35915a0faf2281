"""What the masks of queries and keys select: openness, constants, and the network without them."""

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, NamedTuple, Tuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmkcr.evaluation.features import undisturbed
from mmkcr.models.gates import QKMask
from mmkcr.models.losses.mask_price import channels_last, foldable_macs
from mmkcr.models.utils import unwrap


class MaskStatistics(NamedTuple):
    """A mask over a data set, without noise.

    Args:
        open (float): Share of entries, over positions, images and channels, that are 1.
        always (float): Share of channels that are 1 for every position of every image.
        never (float): Share of channels that are 0 likewise.
        foldable (float): MACs of one sequence that a static fold of the constant channels saves:
            all of a channel that is never open, the mask's row of one that always is.
    """

    open: float
    always: float
    never: float
    foldable: float


def find_masks(model: nn.Module) -> Dict[str, QKMask]:
    """The masks of a model by module path.

    Args:
        model (nn.Module): Any, also in a wrapper.
    """
    return {name: module for name, module in unwrap(model).named_modules()
            if isinstance(module, QKMask)}


@contextmanager
def masks_held_open(model: nn.Module) -> Iterator[None]:
    """Within the block all masks are 1: the control of what they do."""
    masks = find_masks(model).values()
    before = [mask.held_open for mask in masks]
    try:
        for mask in masks:
            mask.held_open = True
        yield
    finally:
        for mask, held_open in zip(masks, before):
            mask.held_open = held_open


@torch.no_grad()
def mask_statistics(model: nn.Module, loader: DataLoader) -> Dict[str, MaskStatistics]:
    """Statistics of every mask over a data set, in one pass.

    Args:
        model (BaseModel): A task model with masks.
        loader (DataLoader): As of :func:`~mmkcr.evaluation.analysis.split_loader`.

    Raises:
        ValueError: It has no masks.
    """
    masks = find_masks(model)
    if not masks:
        raise ValueError('expected a model with masks on queries and keys, found '
                         f'`{type(unwrap(model)).__name__}` without')
    opened: Dict[str, Tensor] = {}
    positions: Dict[str, int] = {}
    macs: Dict[str, Tuple[float, float]] = {}

    def watch(name: str) -> Any:
        def record(mask: QKMask, args: tuple, theta: Tensor) -> None:
            values = channels_last(mask, theta) > 0
            opened[name] = opened.get(name, 0) + values.sum(0)
            positions[name] = positions.get(name, 0) + len(values)
            macs[name] = foldable_macs(mask, args[0])

        return masks[name].register_forward_hook(record)

    with undisturbed(model), ExitStack() as stack:
        for name in masks:
            stack.callback(watch(name).remove)
        for batch in loader:
            model.test_step(batch)
    return {name: _statistics(opened[name] / positions[name], *macs[name])
            for name in masks if name in opened}


def _statistics(openness: Tensor, shut: float, rows: float) -> MaskStatistics:
    always, never = (float((openness == value).double().mean()) for value in (1, 0))
    return MaskStatistics(float(openness.double().mean()), always, never,
                          never * shut + always * rows)
