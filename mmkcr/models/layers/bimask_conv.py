"""Convolutions of a supernet whose channels are masked after their norm (OFB on CNNs)."""

from typing import Sequence, Tuple

from torch import Tensor, nn

from mmkcr.core import SearchableLayer
from mmkcr.core.sites import Count
from mmkcr.models.gates import BiMaskGate


def conv_macs(conv: nn.Conv2d, sides: Sequence[int], inputs: Count, outputs: Count) -> Count:
    """``positions * kernel area * inputs * outputs`` of a convolution without groups.

    Args:
        conv (nn.Conv2d): Gives kernel, stride, padding and dilation.
        sides (Sequence[int]): Height and width of its input.
        inputs (int | Tensor): Input channels.
        outputs (int | Tensor): Output channels.
    """
    positions, area = 1, 1
    for length in conv_sides(conv, sides):
        positions *= length
    for length in conv.kernel_size:
        area *= length
    return positions * area * inputs * outputs


def conv_sides(conv: nn.Conv2d, sides: Sequence[int]) -> Tuple[int, ...]:
    """Height and width of a convolution's output."""
    return tuple((side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
                 for side, kernel, stride, padding, dilation in
                 zip(sides, conv.kernel_size, conv.stride, conv.padding, conv.dilation))


class MaskedBatchNorm(nn.BatchNorm2d):
    """Batch norm whose output is multiplied by a gate's mask."""

    #: The gate, in a tuple: it belongs to another layer.
    shared: Tuple[BiMaskGate]

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and mask (B, present, H, W)."""
        return super().forward(x) * self.shared[0]().to(x.dtype)[:, None, None]


class GatedConv(nn.Conv2d, SearchableLayer):
    """Convolution of a supernet: holds the gate of its output channels.

    The mask is applied by the :class:`MaskedBatchNorm` after it. The
    convolution that reads the channels, if they are a block's own, counts here.

    Args of its making by :func:`~mmkcr.models.layers.bimask.take_over`:
    ``gate``; ``couplings`` with ``width``, the channels that it reads, if
    these are a site, and ``written``, those that its reader writes; ``reader``,
    that convolution, in a tuple, or ().
    """

    gate: BiMaskGate
    reader: Tuple[nn.Conv2d, ...]

    def macs(self, size: Count, input_shape: Sequence[int], width: Count = 0,
             written: Count = 0) -> Count:
        """Of this convolution and of its reader."""
        sides = input_shape[-2:]
        inputs = width if 'width' in self.couplings else self.in_channels
        macs = conv_macs(self, sides, inputs, size)
        for reader in self.reader:
            macs = macs + conv_macs(reader, conv_sides(self, sides), size, written)
        return macs
