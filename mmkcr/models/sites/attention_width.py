"""Base class of the kinds that slice the width of attention."""

from typing import List, Mapping, Optional, Tuple

from torch import Tensor, nn
from torch.optim import Optimizer

from mmkcr.core import Axis, MaskPoint
from .base import AttentionSite


class AttentionWidth(AttentionSite):
    """Queries, keys, values and the output projection are sliced together."""

    #: Channels per unit: 1, or the width of a head.
    unit: int = 1

    def open(self) -> None:
        """Exchange a layer that does not call its output projection as a module, as hooks need."""
        if self.view.opened is not None:
            self._exchange(self.view.opened(self.owner))

    def axes(self) -> List[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        view, called = self.view, self.view.called
        # a scale folds where `mask_points` masks: into the projections or into the output's columns
        found = [Axis(self.module(path), name, 0, called, repeats)
                 for path, repeats in zip(view.projections, view.fused)
                 for name in ('weight', 'bias')]
        found.append(Axis(self.module(view.output), 'weight', 1, not called))
        found += view.extra(self.owner) if view.extra is not None else []
        return [self._of_units(axis) for axis in found]

    def _of_units(self, axis: Axis) -> Axis:
        """An axis of channels, converted to one of this kind's units."""
        if self.unit == 1:
            return axis
        if axis.per > 1:  # one entry per head, which is one unit
            return axis._replace(per=1)
        return axis._replace(inner=axis.inner * self.unit)

    def products(self) -> Mapping[str, Tuple[str, ...]]:
        """Both products of the attention."""
        return {self.path: ('scores', 'values')}

    def mask_points(self) -> List[MaskPoint]:
        """Queries, keys and values if hooks can see them, else the output projection's input."""
        view = self.view
        if view.called:
            return [MaskPoint(self.module(path), 'output', -1, repeats, self.unit)
                    for path, repeats in zip(view.projections, view.fused)]
        return [MaskPoint(self.module(view.output), 'input', -1, 1, self.unit)]

    def _shape(self, kept: Tensor) -> Tuple[int, int]:
        """Number of heads that are left, and their width."""
        raise NotImplementedError

    def slice_units(self, units: Tensor, optimizer: Optional[Optimizer] = None) -> None:
        """Slice, and resize the layer to the heads and widths that are left."""
        present = self.kept
        kept = units if present is None else present[units]
        super().slice_units(units, optimizer)
        self._exchange(self.view.resize(self.owner, *self._shape(kept)))

    def _exchange(self, module: nn.Module) -> None:
        if module is not self.owner:
            self.host.set_submodule(self.path, module)
