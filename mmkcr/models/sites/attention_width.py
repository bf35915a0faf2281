"""Base class of the kinds that slice the width of attention."""

from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from mmkcr.core import Axis, MaskPoint, scale_axes
from mmkcr.core.axes import along_inputs, along_outputs
from mmkcr.models.layers.sized_attention import Sized
from .base import AttentionSite


class AttentionWidth(AttentionSite):
    """Queries, keys, values and the output projection are sliced together."""

    #: ``repeats`` and ``inner`` of an axis over all channels of all heads, see
    #: :class:`~mmkcr.core.Axis`.
    layout: tuple[int, int] = (1, 1)

    def open(self) -> None:
        """Exchange a layer that does not call its output projection as a module, as hooks need."""
        if self.view.opened is not None and not self.view.rotary:
            self._open()

    def _open(self) -> None:
        if not isinstance(self.owner, Sized):
            self._exchange(self.view.opened(self.owner))

    def axes(self) -> list[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        view, called = self.view, not self.view.why_uncalled
        # a scale folds where `mask_points` masks: into the projections or into the output's columns
        axes = [axis for path, repeats in zip(view.projections, view.fused)
                for axis in along_outputs(self.module(path), called, repeats=repeats)]
        axes.append(along_inputs(self.module(view.output), not called))
        return [self._of_units(axis) for axis in (*axes, *view.extra(self.owner))]

    def _of_units(self, axis: Axis) -> Axis:
        """An axis of channels, converted to one of this kind's units."""
        repeats, inner = self.layout
        if axis.per > 1:  # one entry per head
            return axis._replace(per=axis.per // inner)
        return axis._replace(repeats=axis.repeats * repeats, inner=axis.inner * inner)

    def products(self) -> Mapping[str, tuple[str, ...]]:
        """Both products of the attention."""
        return {self.path: ('scores', 'values')}

    def mask_points(self) -> list[MaskPoint]:
        """Queries, keys and values if hooks can see them, else the output projection's input."""
        view = self.view
        if not view.why_uncalled:
            return [MaskPoint(self.module(path), 'output', -1, repeats, self.layout[1])
                    for path, repeats in zip(view.projections, view.fused)]
        return [MaskPoint(self.module(view.output), 'input', -1, *self.layout)]

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        """Number of heads that are left, and their width."""
        raise NotImplementedError

    def resized(self, kept: Tensor) -> None:
        """Resize the layer to the heads and widths that are left."""
        width = self.view.width if self.kept is None else self._shape(self.kept)[1]
        heads, new = self._shape(kept)
        self._exchange(self.view.resize(self.owner, heads, new))
        if self.view.rotary:  # a layer of ours keeps the dense scale
            return
        if new != width:
            for name in ('scale', 'scaling'):  # what the host records for the width that is there
                if isinstance(getattr(self.owner, name, None), float):
                    setattr(self.owner, name, getattr(self.owner, name) * (new / width)**-0.5)
            self._factor *= (new / width)**0.5
        if self.gate is not None and self._factor != 1:
            self._unmask()  # weights that still learn keep their scale; queries may be fewer
            self._mask()

    #: What the queries are to be multiplied by, so that the softmax keeps the dense head's scale.
    _factor: float = 1.

    def _mask(self) -> None:
        super()._mask()
        if self._factor != 1:
            query, scale = self._query_scale()
            self._handles.append(query.register_forward_hook(partial(_scaled, scale)))

    def detach(self) -> None:
        """Remove the gate; what scales the queries becomes part of their weights."""
        super().detach()
        if self._factor != 1:
            query, scale = self._query_scale()
            scale_axes(along_outputs(query, True), scale)
            self._factor = 1.

    def _query_scale(self) -> tuple[nn.Module, Tensor]:
        """The layer of the queries, and the scale of its outputs, of which they are the first."""
        query = self.module(self.view.projections[0])
        scale = query.weight.new_ones(len(query.weight))
        scale[:len(scale) // self.view.fused[0]] = self._factor
        return query, scale

    def _exchange(self, module: nn.Module) -> None:
        if module is not self.owner:
            self.host.set_submodule(self.path, module)


def _scaled(scale: Tensor, _: nn.Module, args: tuple, out: Tensor) -> Tensor:
    """The output of a projection, as a forward hook."""
    return (out * scale.to(out.device)).to(out.dtype)  # bf16 has two digits of a scale

