"""What the masks of queries and keys select, and the network without them.

Not imported by the package's ``__init__``, as :mod:`mmkcr.evaluation.features`.
"""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch.nn.functional as F
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmkcr.models.sites.qk_mask import QKMaskSite
from mmkcr.models.tasks import unwrap
from .qk_mask import QKMask


def find_masks(model: nn.Module) -> Mapping[str, QKMask]:
    """The masks of a model, also in a wrapper, by module path.

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
    with ExitStack() as stack:
        for mask in find_masks(model).values():
            stack.callback(setattr, mask, 'held_open', mask.held_open)
            mask.held_open = True
        yield


class MaskWatch(ExitStack):
    """Counts what masks select in the forward passes of a block.

    ::

        with MaskWatch(model) as watch:
            for batch in loader:
                model.test_step(batch)
        watch.table()

    Raises:
        ValueError: The model has no masks.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.masks = find_masks(model)
        self._counts: dict[QKMask, Tensor] = {}  # open positions by channel; all positions

    def __enter__(self) -> 'MaskWatch':
        for mask in self.masks.values():
            self.enter_context(mask.register_forward_hook(self._count))
        return self

    def _count(self, mask: QKMask, args: tuple, theta: Tensor) -> None:
        if mask.maps:  # (B, R, D, H, W)
            theta = theta.permute(0, 3, 4, 1, 2)
        opened = theta.detach().flatten(-2).flatten(0, -2) > 0  # (all positions, R * D)
        self._counts[mask] = self._counts.get(mask, 0) + F.pad(opened, (0, 1), value=True).sum(0)

    def table(self) -> dict[str, dict[str, float]]:
        """Of every mask that was called, over all processes, by its layer within the backbone.

        ``open`` is the share of entries, over positions, images and channels, that are 1;
        ``always`` that of the channels that are 1 for every position of every image, and ``never``
        that of those that are 0 likewise; all in percent, without noise.
        """
        shares = {}
        for name, mask in self.masks.items():
            if mask not in self._counts:
                continue
            counts = self._counts[mask].double()
            all_reduce(counts)
            openness = counts[:-1] / counts[-1]  # share of positions that are open, by channel
            layer = name.rpartition('backbone.')[2].removesuffix('.mask')
            shares[layer] = {key: 100 * float(share.double().mean()) for key, share in dict(
                open=openness, always=openness == 1, never=openness == 0).items()}
        return shares

    def means(self) -> Mapping[str, float]:
        """Means of the columns of :meth:`table` over the masks."""
        rows = list(self.table().values())
        return {key: statistics.fmean(row[key] for row in rows)
                for key in ('open', 'always', 'never')}
