"""Inputs of the output projection of linear attention (DCS, appendix A)."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from mmkcr.core import Axis, Cost, MaskPoint
from mmkcr.core.axes import along_inputs
from mmkcr.models.layers.selection import Take
from .base import HostSite, linear_paths


class AttentionOutputs(HostSite):
    """A unit is a channel of EfficientViT's concatenated scales, which the projection reads."""

    kind = 'attention_outputs'
    views = staticmethod(linear_paths)

    @classmethod
    def of(cls, host: nn.Module, view: str) -> 'AttentionOutputs':
        """The inputs of a layer's projection."""
        return cls(host, view, view, host.get_submodule(view).features)

    def axes(self) -> list[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        return [along_inputs(self.owner.proj.conv, True)]

    def mask_points(self) -> list[MaskPoint]:
        """See :class:`~mmkcr.core.Site`."""
        return [MaskPoint(self.owner.proj.conv, 'input', 1)]

    def resized(self, kept: Tensor) -> None:
        """Select what the projection reads."""
        self.owner.select = Take(kept, self.total, 1)

    def paper_cost(self, size: Cost, input_shape: Sequence[int]) -> Cost:
        """``(2 size^2 + size) + (1 + size) H W C'`` (DCS, appendix A).

        C' are the hidden channels of the local module's first convolution.
        """
        local = self.module(f'{self.view.rpartition(".")[0]}.local')
        filters = local.inverted_conv.conv.out_channels
        return 2 * size * size + size + (1 + size) * math.prod(input_shape[-2:]) * filters
