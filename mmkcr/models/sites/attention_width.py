"""Base class of the kinds that slice the width of attention."""

from typing import List, Mapping, Optional, Tuple

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
        width = self.view.width if present is None else self._shape(present)[1]
        super().slice_units(units, optimizer)
        heads, new = self._shape(kept)
        self._exchange(self.view.resize(self.owner, heads, new))
        if new != width:
            query = self.module(self.view.projections[0])
            keep_scale(self.owner, query, len(query.weight) // self.view.fused[0], new / width,
                       optimizer)

    def _exchange(self, module: nn.Module) -> None:
        if module is not self.owner:
            self.host.set_submodule(self.path, module)


def keep_scale(layer: nn.Module, projection: nn.Module, rows: int, ratio: float,
               optimizer: Optional[Optimizer] = None) -> None:
    """Fold into the queries what a narrower head would change in the scale of the softmax.

    The layer then computes with the scale that its host takes by itself for the width that is
    there, in each of the host's implementations.

    Args:
        layer (nn.Module): The attention layer; an attribute with its scale is set.
        projection (nn.Module): The layer that gives the queries.
        rows (int): How many of its first outputs are queries.
        ratio (float): New width over the one before.
        optimizer (Optimizer, optional): Its moments follow. Defaults to none.
    """
    for name in ('scale', 'scaling'):
        if isinstance(getattr(layer, name, None), float):
            setattr(layer, name, getattr(layer, name) * ratio**-0.5)
    factor = torch.ones(len(projection.weight), dtype=torch.float64)
    factor[:rows] = ratio**0.5
    axes = [Axis(projection, name, folds=True) for name in ('weight', 'bias')]
    scale_axes(axes, factor, optimizer)
    if getattr(layer, 'q_bias', None) is not None:
        scale_axes([Axis(layer, 'q_bias', folds=True)], factor[:len(layer.q_bias)], optimizer)
