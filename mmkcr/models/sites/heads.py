"""Heads of attention, whole or with some of their channels (Once for Both, section 3)."""

from typing import Any, List, Mapping, Optional, Tuple

from torch import Tensor, nn
from torch.optim import Optimizer

from mmkcr.core import Axis, MaskPoint, Unsupported
from .base import AttentionSite, register_kind


class _AttentionWidth(AttentionSite):
    """What the two kinds share: both slice queries, keys, values and the output projection."""

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


@register_kind
class Heads(_AttentionWidth):
    """A unit is a head: its queries, keys and values, and what the output projection reads."""

    kind = 'heads'

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'Heads':
        """The heads of an attention layer."""
        site = cls(host, view, view.path, view.heads, view.heads)
        site.unit = view.width
        return site

    def axes(self) -> List[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        view = self.view
        return [*super().axes(), *(view.of_heads(self.owner) if view.of_heads is not None else ())]

    def _shape(self, kept: Tensor) -> Tuple[int, int]:
        return len(kept), self.unit


@register_kind
class HeadChannels(_AttentionWidth):
    """A unit is a channel of a head, unit ``h * width + c``; one mask for queries, keys, values.

    A selection keeps equally many channels of every head that it keeps. The softmax keeps the
    scale of the dense head.
    """

    kind = 'head_channels'

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'HeadChannels':
        """The channels of all heads of an attention layer."""
        if view.why_no_width:
            raise Unsupported(f'{view.why_no_width} at `{view.path}`')
        if not view.called:
            raise Unsupported(f'{view.why_uncalled} at `{view.path}`')
        return cls(host, view, view.path, view.heads * view.width, view.heads)

    def _shape(self, kept: Tensor) -> Tuple[int, int]:
        heads = len(self.group_counts(kept))
        return heads, len(kept) // heads
