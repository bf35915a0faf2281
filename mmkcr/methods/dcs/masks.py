"""What the masks of queries and keys select, and the network without them.

Not imported by the package's ``__init__``, as :mod:`mmkcr.evaluation.features`.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmkcr.models.sites.qk_mask import QKMaskSite
from mmkcr.models.tasks import unwrap
from .qk_mask import QKMask


class MaskStatistics(NamedTuple):
    """A mask over a data set, without noise.

    Args:
        open (float): Share of entries, over positions, images and channels, that are 1.
        always (float): Share of channels that are 1 for every position of every image.
        never (float): Share of channels that are 0 likewise.
    """

    open: float
    always: float
    never: float


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
        self._opened: dict[str, Tensor] = {}  # open positions by channel
        self._positions: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> 'MaskWatch':
        for name, mask in self.masks.items():
            self._stack.callback(mask.register_forward_hook(self._recorder(name)).remove)
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def _recorder(self, name: str) -> Callable[[QKMask, tuple, Tensor], None]:
        def record(mask: QKMask, args: tuple, theta: Tensor) -> None:
            if mask.maps:  # (B, R, D, H, W)
                theta = theta.permute(0, 3, 4, 1, 2)
            values = theta.detach().flatten(-2).flatten(0, -2) > 0  # (all positions, R * D)
            self._opened[name] = self._opened.get(name, 0) + values.sum(0)
            self._positions[name] = self._positions.get(name, 0) + len(values)

        return record

    def statistics(self) -> dict[str, MaskStatistics]:
        """Of every mask that was called, over all processes."""
        found = {}
        for name in filter(self._opened.__contains__, self.masks):
            opened = self._opened[name]
            counts = torch.cat([opened.double(),
                                opened.new_tensor([self._positions[name]]).double()])
            all_reduce(counts)
            openness = counts[:-1] / counts[-1]  # share of positions that are open, by channel
            always, never = (float((openness == value).double().mean()) for value in (1, 0))
            found[name] = MaskStatistics(float(openness.mean()), always, never)
        return found

    def table(self) -> dict[str, dict[str, float]]:
        """``open``, ``always`` and ``never`` in percent by layer, named as in the backbone."""
        return {name.rpartition('backbone.')[2].removesuffix('.mask'):
                {key: 100 * value for key, value in mask._asdict().items()}
                for name, mask in self.statistics().items()}

    def means(self) -> Mapping[str, float]:
        """``open``, ``always`` and ``never`` in percent, means over the masks."""
        found = list(self.statistics().values())
        return {key: 100 * statistics.fmean(values)
                for key, values in zip(MaskStatistics._fields, zip(*found))}
