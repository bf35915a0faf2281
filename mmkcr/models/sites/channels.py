"""Channels that layers write for others: of necks and heads, of streams, of linear attention."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.core import Axis, Cost, MaskPoint, Unsupported
from mmkcr.core.axes import along_inputs, along_outputs, outputs_of
from mmkcr.models.adapters import channel_views, stream_views
from mmkcr.models.adapters.mlps import plain_conv
from mmkcr.models.layers.selection import Take, put
from .base import HostSite, linear_paths


class Channels(HostSite):
    """A unit is a channel that some layers write and others read.

    Behind a ``GroupNorm`` a unit is a whole group of channels, because each group is normalised on
    its own. Between the norm and the readers only activations that map 0 to 0, pooling, resizing
    and concatenation are allowed.
    """

    kind = 'channels'
    views = staticmethod(channel_views)

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'Channels':
        """The channels of a view."""
        for path in (*view.writers, *(reads.path for reads in view.readers)):
            plain_conv(host.get_submodule(path))
        widths = {1}  # channels per unit: 1, and the group width of any `GroupNorm`
        for path in filter(None, view.norms):
            norm = host.get_submodule(path)
            if isinstance(norm, nn.GroupNorm):
                widths.add(norm.num_channels // norm.num_groups)
            elif not isinstance(norm, _BatchNorm):
                raise Unsupported(f'`{type(norm).__name__}` mixes the channels at `{path}`')
        if len(widths) > 2:
            raise Unsupported(f'norms with groups of {sorted(widths)[1:]} channels write to one '
                              f'sum at `{view.writers[0]}`')
        writer = host.get_submodule(view.writers[0])
        site = cls(host, view, view.writers[0], outputs_of(writer) // max(widths))
        site.width = max(widths)
        return site

    def axes(self) -> list[Axis]:
        """See :class:`~mmkcr.core.Site`; readers come first, see ``before`` of an axis."""
        view, axes = self.view, []
        writer = self.module(view.writers[0])
        for reads in view.readers:
            layer = self.module(reads.path)
            behind = {}  # other layers' outputs, in a concatenation
            if reads.before is not None:
                before = [item if isinstance(item, int) else self.module(item)
                          for item in reads.before]
                behind = dict(before=tuple(before), writer=writer)
            axes.append(along_inputs(layer, inner=reads.inner * self.width, **behind))
        for path, norm in zip(view.writers, view.norms or ('', ) * len(view.writers)):
            # a mask acts on the norm if there is one: the norm would undo a scale in the layer
            axes += along_outputs(self.module(path), not norm, inner=self.width)
            axes += along_outputs(self.module(norm), True, inner=self.width) if norm else []
        return axes

    def resized(self, kept: Tensor) -> None:
        """Let the adapter update a module that records the width."""
        if self.view.resize is not None:
            self.view.resize(self.module(self.view.path), len(kept) * self.width)


class Embedding(HostSite):
    """A unit is a channel of a residual stream, in all layers that write it or read it.

    The mask multiplies the embeddings that start the stream. Features that leave the host keep the
    dense width, with 0 at dropped channels. So heads and necks stay as in the dense model.
    """

    kind = 'embedding'
    views = staticmethod(stream_views)

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'Embedding':
        """The width of a stream."""
        return cls(host, view, view.path, view.total)

    def axes(self) -> list[Axis]:
        view = self.view
        axes = [Axis(self.host, name, 2, True) for name in view.tokens]
        for path in (*view.writers, *view.scales):
            axes += along_outputs(self.module(path), path in view.folds)
        for path, inner in view.norms:
            axes += along_outputs(self.module(path), path in view.folds, inner=inner)
        return axes + [along_inputs(self.module(path), inner=inner)
                       for path, inner in view.readers]

    def mask_points(self) -> list[MaskPoint]:
        return [MaskPoint(self.module(path), 'output', dim) for path, dim in self.view.masked]

    def norms(self) -> tuple[tuple[str, int], ...]:
        """Norms over the stream."""
        return self.view.norms

    def resized(self, kept: Tensor) -> None:
        """Update the host's own record of the width."""
        if self.view.resize is not None:
            self.view.resize(self.host, len(kept))

    def has_plain_form(self) -> bool:
        """Not of a narrower stream, whose features are widened behind the host."""
        return self.present == self.total

    def widened(self, outputs: Any) -> Any:
        """See :class:`~mmkcr.models.sites.base.HostSite`."""
        if isinstance(outputs, Tensor):
            return self.widened((outputs, ))[0]
        wide = list(outputs)
        for place in self.view.places:
            if place < len(wide):
                wide[place] = self.widen(wide[place], 1 if wide[place].ndim == 4 else -1)
        return type(outputs)(wide)

    def widen(self, x: Tensor, dim: int = -1) -> Tensor:
        """Put the present channels, along ``dim``, at their places in the dense width, else 0."""
        kept, support = self.kept, None if self.gate is None else self.gate.support()
        if support is not None:  # channels that no option keeps leave as 0, as after slicing
            shape = [1] * x.ndim
            shape[dim] = -1
            x = x * (support > 0).to(x.dtype).view(shape)
        if kept is None or len(kept) == self.total:
            return x
        return put(x, kept.to(x.device), self.total, dim)


class AttentionOutputs(HostSite):
    """A unit is a channel of EfficientViT's concatenated scales, which the projection reads."""

    kind = 'attention_outputs'
    views = staticmethod(linear_paths)

    @classmethod
    def of(cls, host: nn.Module, view: str) -> 'AttentionOutputs':
        """The inputs of a layer's projection."""
        return cls(host, view, view, host.get_submodule(view).features)

    def axes(self) -> list[Axis]:
        return [along_inputs(self.owner.proj.conv, True)]

    def resized(self, kept: Tensor) -> None:
        """Select the inputs of the projection."""
        self.owner.select = Take(kept, self.total, 1)

    def paper_cost(self, size: Cost, input_shape: Sequence[int]) -> Cost:
        """``(2 size^2 + size) + (1 + size) H W C'`` (DCS, appendix A).

        C' are the hidden channels of the local module's first convolution.
        """
        local = self.module(f'{self.view.rpartition(".")[0]}.local')
        filters = local.inverted_conv.conv.out_channels
        return 2 * size * size + size + (1 + size) * math.prod(input_shape[-2:]) * filters
