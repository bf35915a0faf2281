"""Channels of heads whose rotary positions rotate pairs of them."""

from torch import Tensor

from mmkcr.core import Axis, MaskPoint
from .attention_width import AttentionWidth


class RotaryPairs(AttentionWidth):
    """A unit is a pair of channels, the same pair in all heads, because heads share the angles.

    Queries and keys lose the pair and its angles. Values and the output projection, which do not
    depend on positions, lose the two channels with the same indices.
    """

    kind = 'head_channels'

    def open(self) -> None:
        """Exchange the layer for one that rotates queries and keys by a module."""
        self._open()

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
