"""Heads of attention, whole or with some of their channels (Once for Both, section 3)."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from torch import Tensor, nn

from mmkcr.core import Axis, MaskPoint, Unsupported, scale_axes
from mmkcr.core.axes import along_inputs, along_outputs
from mmkcr.models.layers.sized_attention import Sized
from .base import AttentionSite


class AttentionWidth(AttentionSite):
    """Queries, keys, values and the output projection are sliced together."""

    #: ``repeats`` and ``inner`` of an axis over all channels of all heads, see
    #: :class:`~mmkcr.core.Axis`.
    layout: tuple[int, int] = (1, 1)
    #: Whether the layer is to rotate queries and keys by a module.
    rotates: ClassVar[bool] = False

    def open(self) -> None:
        """Exchange a layer that does not call all that hooks need as modules."""
        opened = self.view.opened
        if opened and bool(self.view.rotary) == self.rotates and not isinstance(self.owner, Sized):
            self.exchange(self.path, opened(self.owner))

    def axes(self) -> list[Axis]:
        view, called = self.view, not self.view.why_uncalled
        # masks act on queries, keys and values if hooks can see them, else on the output's input
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

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        """Number of heads that are left, and their width."""
        raise NotImplementedError

    def resized(self, kept: Tensor) -> None:
        """Resize the layer to the heads and widths that are left."""
        width = self.view.width if self.kept is None else self._shape(self.kept)[1]
        heads, new = self._shape(kept)
        self.exchange(self.path, self.view.resize(self.owner, heads, new))
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
        """Remove the gate; the scale of the queries becomes part of their weights."""
        super().detach()
        if self._factor != 1:
            query, scale = self._query_scale()
            scale_axes(along_outputs(query, True), scale)
            self._factor = 1.

    def _query_scale(self) -> tuple[nn.Module, Tensor]:
        """The layer whose first outputs are the queries, and the scale of these outputs."""
        query = self.module(self.view.projections[0])
        scale = query.weight.new_ones(len(query.weight))
        scale[:len(scale) // self.view.fused[0]] = self._factor
        return query, scale


class Heads(AttentionWidth):
    """A unit is a head: its queries, keys, values and columns of the output projection."""

    kind = 'heads'

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'Heads':
        """The heads of an attention layer."""
        if getattr(host, 'rope_mixed', False):  # an attribute of timm's models
            raise Unsupported(f'each head has rotary positions of its own at `{view.path}`')
        _check_positions(host, view.path)
        site = cls(host, view, view.path, view.heads, view.heads)
        site.layout = (1, view.width)
        return site

    def axes(self) -> list[Axis]:
        view = self.view
        return [*super().axes(), *(view.of_heads(self.owner) if view.of_heads is not None else ())]

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        return len(kept), self.view.width


class HeadChannels(AttentionWidth):
    """A unit is a channel of a head, with one mask for queries, keys and values.

    Unit ``h * width + c`` is channel c of head h. A selection keeps equally many channels of every
    head that it keeps. The softmax keeps the scale of the dense head. If rotary positions rotate
    pairs of channels, the site is a :class:`RotaryPairs`.
    """

    kind = 'head_channels'
    bases = 'channels'

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> AttentionWidth:
        """The channels of all heads of an attention layer."""
        if view.why_no_width:
            raise Unsupported(f'{view.why_no_width} at `{view.path}`')
        if view.rotary:
            site = RotaryPairs(host, view, view.path, view.width // 2)
            # 'half': a head has the first channels of all pairs, then the second; else pair by pair
            site.layout = (2 * view.heads, 1) if view.rotary == 'half' else (view.heads, 2)
            return site
        if view.why_uncalled:
            raise Unsupported(f'{view.why_uncalled} at `{view.path}`')
        _check_positions(host, view.path)  # whole heads may go
        return cls(host, view, view.path, view.heads * view.width, view.heads)

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        heads = len(self.group_counts(kept))  # heads that keep any channel
        return heads, len(kept) // heads


class RotaryPairs(AttentionWidth):
    """A unit is a pair of channels, the same pair in all heads, because heads share the angles.

    Queries and keys lose the pair and its angles. Values and the output projection, which do not
    depend on positions, lose the two channels with the same indices.
    """

    kind = 'head_channels'
    bases = 'pairs'
    rotates = True

    def _of_units(self, axis: Axis) -> Axis:
        return super()._of_units(axis)._replace(folds=axis.dim == 0)

    def mask_points(self) -> list[MaskPoint]:
        """Queries and keys after the rotation, and the input of the output projection."""
        repeats, inner = self.layout  # the rotation's output has heads apart: one head's repeats
        return [MaskPoint(self.owner.rotary, 'output', -1, repeats // self.view.heads, inner),
                MaskPoint(self.module(self.view.output), 'input', -1, repeats, inner)]

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        return self.view.heads, 2 * len(kept)

    def resized(self, kept: Tensor) -> None:
        """Resize the layer, and rotate by the angles of the pairs that are left."""
        super().resized(kept)
        self.owner.rotary.keep(kept, self.view.width)


def _check_positions(host: nn.Module, path: str) -> None:
    """Refuse heads whose position biases are in a table of another module, as an option of BEiT."""
    modules, names = [host], path.split('.')
    for name in names[:-1]:
        modules.append(modules[-1].get_submodule(name))
    # attributes of mmpretrain's, timm's and transformers' models; a block's own is no shared one
    if any(module._modules.get(name) is not None for module in modules[:-1] for name in
           ('rel_pos_bias', 'relative_position_bias', 'shared_position_bias')):
        raise Unsupported(f'all layers share the position biases of the heads at `{path}`')


def _scaled(scale: Tensor, _: nn.Module, args: tuple, out: Tensor) -> Tensor:
    """The output of a projection, as a forward hook."""
    return (out * scale.to(out.device)).to(out.dtype)  # bf16 has two digits of a scale
