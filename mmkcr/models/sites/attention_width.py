"""Base class of the kinds that slice the width of attention."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mmkcr.core import Axis, MaskPoint, scale_axes
from .base import AttentionSite


class AttentionWidth(AttentionSite):
    """Queries, keys, values and the output projection are sliced together."""

    #: Channels per unit: 1, or the width of a head.
    unit: int = 1

    def open(self) -> None:
        """Exchange a layer that does not call its output projection as a module, as hooks need."""
        if self.view.opened is not None:
            self._exchange(self.view.opened(self.owner))

    def axes(self) -> list[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        view, called = self.view, not self.view.why_uncalled
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

    def products(self) -> Mapping[str, tuple[str, ...]]:
        """Both products of the attention."""
        return {self.path: ('scores', 'values')}

    def mask_points(self) -> list[MaskPoint]:
        """Queries, keys and values if hooks can see them, else the output projection's input."""
        view = self.view
        if not view.why_uncalled:
            return [MaskPoint(self.module(path), 'output', -1, repeats, self.unit)
                    for path, repeats in zip(view.projections, view.fused)]
        return [MaskPoint(self.module(view.output), 'input', -1, 1, self.unit)]

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        """Number of heads that are left, and their width."""
        raise NotImplementedError

    def slice_units(self, units: Tensor, optimizer: Optimizer | None = None) -> None:
        """Slice, and resize the layer to the heads and widths that are left."""
        present = self.kept
        kept = units if present is None else present[units]
        width = self.view.width if present is None else self._shape(present)[1]
        super().slice_units(units, optimizer)
        heads, new = self._shape(kept)
        self._exchange(self.view.resize(self.owner, heads, new))
        if self.view.rotary is not None:  # a layer of ours keeps the dense scale
            return
        if new != width:
            for name in ('scale', 'scaling'):  # what the host records for the width that is there
                if isinstance(getattr(self.owner, name, None), float):
                    setattr(self.owner, name, getattr(self.owner, name) * (new / width)**-0.5)
            self._factor *= (new / width)**0.5
        if self.gate is None:
            self._fold_scale()
        elif self._factor != 1:  # weights that still learn keep their scale; queries may be fewer
            self._unmask()
            self._mask()

    #: What the queries are to be multiplied by, so that the softmax keeps the dense head's scale.
    _factor: float = 1.

    def _mask(self) -> None:
        super()._mask()
        if self._factor != 1:
            query, rows = self._queries()
            self._handles.append(query.register_forward_hook(QueryScale(rows, self._factor)))

    def detach(self) -> None:
        """Remove the gate; what scales the queries becomes part of their weights."""
        super().detach()
        self._fold_scale()

    def _queries(self) -> tuple[nn.Module, int]:
        """The layer of the queries, and how many of its first outputs they are."""
        query = self.module(self.view.projections[0])
        return query, len(query.weight) // self.view.fused[0]

    def _fold_scale(self) -> None:
        if self._factor != 1:
            query, rows = self._queries()
            scale = torch.ones(len(query.weight), dtype=torch.float64)
            scale[:rows] = self._factor
            scale_axes([Axis(query, name, folds=True) for name in ('weight', 'bias')], scale)
            self._factor = 1.

    def _exchange(self, module: nn.Module) -> None:
        if module is not self.owner:
            self.host.set_submodule(self.path, module)


class QueryScale:
    """Multiplies the first ``rows`` outputs of a projection, the queries, as a forward hook."""

    def __init__(self, rows: int, factor: float) -> None:
        self.rows, self.factor = rows, factor

    def __call__(self, _: nn.Module, args: tuple, out: Tensor) -> Tensor:
        """The output with scaled queries."""
        return torch.cat([out[..., :self.rows] * self.factor, out[..., self.rows:]], -1)

