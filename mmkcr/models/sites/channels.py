"""Channels between the layers of heads and necks."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.core import Axis, MaskPoint, Unsupported
from mmkcr.core.axes import along_inputs, along_outputs, outputs_of
from mmkcr.models.adapters import channel_views
from mmkcr.models.adapters.mlps import plain_conv
from .base import HostSite, channel_dim


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
        """The channels of a view.

        Raises:
            Unsupported: A layer normalises its weights, a norm mixes all channels, or the group
                widths of norms differ.
        """
        for path in (*view.writers, *(reads.path for reads in view.readers)):
            plain_conv(host.get_submodule(path))
        widths = {1}  # channels per unit: 1, and the group width of any `GroupNorm`
        for path in filter(None, view.norms):
            norm = host.get_submodule(path)
            if isinstance(norm, nn.GroupNorm):
                widths.add(norm.num_channels // norm.num_groups)
            elif not isinstance(norm, _BatchNorm):
                raise Unsupported(f'a `{type(norm).__name__}` mixes the channels at `{path}`')
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
            before = None if reads.before is None else tuple(
                item if isinstance(item, int) else self.module(item) for item in reads.before)
            axes.append(along_inputs(layer, inner=reads.inner * self.width, before=before,
                                     writer=None if before is None else writer))
        for path, norm in self._written():
            # a scale folds into the norm if there is one: the norm would undo it in the layer
            axes += along_outputs(self.module(path), not norm, inner=self.width)
            axes += along_outputs(self.module(norm), True, inner=self.width) if norm else []
        return axes

    def _written(self) -> list[Any]:
        norms = self.view.norms or ('', ) * len(self.view.writers)
        return list(zip(self.view.writers, norms))

    def mask_points(self) -> list[MaskPoint]:
        """The output of every writer, behind its norm if there is one."""
        return [MaskPoint(self.module(norm or path), 'output', channel_dim(self.module(path)),
                          inner=self.width) for path, norm in self._written()]

    def resized(self, kept: Tensor) -> None:
        """Let the adapter update a module that records the width."""
        if self.view.resize is not None:
            self.view.resize(self.module(self.view.path), len(kept) * self.width)
