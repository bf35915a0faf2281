"""What the masks of queries and keys select: openness, constants, and the network without them.

Not imported by the package's ``__init__``, as :mod:`mmkcr.evaluation.features`.
"""

import statistics
from contextlib import ExitStack, contextmanager
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Tuple

import torch
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmkcr.models.gates import QKMask
from mmkcr.models.losses.mask_price import channels_last, foldable_macs
from mmkcr.models.sites.qk_mask import QKMaskSite
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


def has_masks(model: nn.Module) -> bool:
    """Whether a model, also in a wrapper, has masks on queries and keys."""
    return any(isinstance(module, QKMask) for module in unwrap(model).modules())


def find_masks(model: nn.Module) -> Mapping[str, QKMask]:
    """The masks of a model by module path.

    Args:
        model (nn.Module): Any, also in a wrapper.

    Raises:
        ValueError: It has none.
    """
    masks = QKMaskSite.masks(unwrap(model))
    if not masks:
        raise ValueError('expected a model with masks on queries and keys, found '
                         f'`{type(unwrap(model)).__name__}` without')
    return masks


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


class MaskWatch:
    """Counts what masks select in the forward passes of a block.

    ::

        with MaskWatch(model) as watch:
            for batch in loader:
                model.test_step(batch)
        watch.statistics()

    Args:
        model (nn.Module): With masks, also in a wrapper.

    Raises:
        ValueError: It has none.
    """

    def __init__(self, model: nn.Module) -> None:
        self.masks = find_masks(model)
        self._opened: Dict[str, Tensor] = {}  # open positions by channel
        self._positions: Dict[str, int] = {}
        self._macs: Dict[str, Tuple[float, float]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> 'MaskWatch':
        for name, mask in self.masks.items():
            self._stack.callback(mask.register_forward_hook(self._recorder(name)).remove)
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def _recorder(self, name: str) -> Callable[[QKMask, tuple, Tensor], None]:
        def record(mask: QKMask, args: tuple, theta: Tensor) -> None:
            values = channels_last(mask, theta.detach()) > 0
            self._opened[name] = self._opened.get(name, 0) + values.sum(0)
            self._positions[name] = self._positions.get(name, 0) + len(values)
            self._macs[name] = foldable_macs(mask, args[0])

        return record

    def statistics(self) -> Dict[str, MaskStatistics]:
        """Of every mask that was called, over all processes."""
        return {name: self._of(name) for name in self.masks if name in self._opened}

    def _of(self, name: str) -> MaskStatistics:
        counts = torch.cat([self._opened[name].double().flatten(),
                            self._opened[name].new_tensor([self._positions[name]]).double()])
        all_reduce(counts)
        openness = counts[:-1] / counts[-1]
        always, never = (float((openness == value).double().mean()) for value in (1, 0))
        shut, rows = self._macs[name]
        return MaskStatistics(float(openness.mean()), always, never,
                              never * shut + always * rows)

    def means(self) -> Mapping[str, float]:
        """``open``, ``always`` and ``never`` in percent, means over the masks."""
        found = list(self.statistics().values())
        return {key: 100 * statistics.fmean(getattr(mask, key) for mask in found)
                for key in ('open', 'always', 'never')}
