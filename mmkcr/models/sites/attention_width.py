"""What kinds that slice the width of attention share."""

from typing import List, Mapping, Optional, Tuple

from torch import Tensor, nn
from torch.optim import Optimizer

from mmkcr.core import Axis, MaskPoint
from .base import AttentionSite


class AttentionWidth(AttentionSite):
    """Queries, keys, values and the output projection are sliced together."""

    #: Channels of one unit.
    unit: int = 1

    def open(self) -> None:
        """Exchange a layer that does not call its output projection as a module."""
        if self.view.opened is not None:
            self._exchange(self.view.opened(self.owner))

    def axes(self) -> List[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        view, called = self.view, self.view.called
        found = [Axis(self.module(path), name, 0, called, repeats)
                 for path, repeats in zip(view.projections, view.fused)
                 for name in ('weight', 'bias')]
        found.append(Axis(self.module(view.output), 'weight', 1, not called))
        found += view.extra(self.owner) if view.extra is not None else []
        return [self._of_units(axis) for axis in found]

    def _of_units(self, axis: Axis) -> Axis:
        """An axis of channels as one of this kind's units."""
        if self.unit == 1:
            return axis
        if axis.per > 1:  # one entry a head
            return axis._replace(per=1)
        return axis._replace(inner=axis.inner * self.unit)

    def products(self) -> Mapping[str, Tuple[str, ...]]:
        """Both products of the attention."""
        return {self.path: ('scores', 'values')}

    def mask_points(self) -> List[MaskPoint]:
        """Queries, keys and values where they are seen, else what the projection reads."""
        view = self.view
        if view.called:
            return [MaskPoint(self.module(path), 'output', -1, repeats, self.unit)
                    for path, repeats in zip(view.projections, view.fused)]
        return [MaskPoint(self.module(view.output), 'input', -1, 1, self.unit)]

    def _shape(self, kept: Tensor) -> Tuple[int, int]:
        """Heads that are left, and their width."""
        raise NotImplementedError

    def slice_units(self, units: Tensor, optimizer: Optional[Optimizer] = None) -> None:
        """Slice, and let the layer compute with what is left."""
        present = self.kept
        kept = units if present is None else present[units]
        super().slice_units(units, optimizer)
        self._exchange(self.view.resize(self.owner, *self._shape(kept)))

    def _exchange(self, module: nn.Module) -> None:
        if module is not self.owner:
            owner, _, name = self.path.rpartition('.')
            setattr(self.module(owner), name, module)
