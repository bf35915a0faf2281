"""Inverted bottlenecks of EfficientViT: dense, gated and sliced.

B batch, C channels, C~ kept channels, h hidden channels, H x W positions.
"""

import math
from typing import Mapping, Optional, Sequence

from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmkcr.core import SearchableLayer, slice_conv, slice_norm
from mmkcr.core.sites import Count
from mmkcr.models.gates import BaseGate
from .selection import add, take


class DSConv(BaseModule):
    """Depthwise and point convolution, with identity where the shape stays.

    Args:
        in_channels (int): Input channels.
        out_channels (int): Output channels.
        stride (int): Of the depthwise convolution. Defaults to 1.
        residual (bool): Add the input. Defaults to False.
        norm_cfg (dict): Defaults to batch norm.
        act_cfg (dict): After the depthwise convolution. Defaults to Hardswish.
    """

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 stride: int = 1,
                 residual: bool = False,
                 norm_cfg: Optional[Mapping] = dict(type='BN'),
                 act_cfg: Optional[Mapping] = dict(type='HSwish')) -> None:
        super().__init__()
        self.residual = residual
        self.depth_conv = ConvModule(in_channels, in_channels, 3, stride, 1, groups=in_channels,
                                     norm_cfg=norm_cfg, act_cfg=act_cfg)
        self.point_conv = ConvModule(in_channels, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H', W')."""
        out = self.depth_conv(x)
        out = self.point_conv(out)
        return x + out if self.residual else out


class MBConv(BaseModule):
    """Inverted, depthwise and point convolution (EfficientViT's local module).

    Args:
        in_channels (int): Input channels.
        out_channels (int): Output channels.
        expand_ratio (float): Hidden over input channels. Defaults to 4.
        stride (int): Of the depthwise convolution. Defaults to 1.
        fewer_norm (bool): Biases instead of norms after the first two convolutions, as in the
            stages with attention. Defaults to False.
        residual (bool): Add the input. Defaults to False.
        norm_cfg (dict): Defaults to batch norm.
        act_cfg (dict): After the first two convolutions. Defaults to Hardswish.
    """

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 expand_ratio: float = 4,
                 stride: int = 1,
                 fewer_norm: bool = False,
                 residual: bool = False,
                 norm_cfg: Optional[Mapping] = dict(type='BN'),
                 act_cfg: Optional[Mapping] = dict(type='HSwish')) -> None:
        super().__init__()
        self.residual = residual
        hidden = round(in_channels * expand_ratio)
        inner = dict(norm_cfg=None if fewer_norm else norm_cfg, act_cfg=act_cfg, bias=fewer_norm)
        self.inverted_conv = ConvModule(in_channels, hidden, 1, **inner)
        self.depth_conv = ConvModule(hidden, hidden, 3, stride, 1, groups=hidden, **inner)
        self.point_conv = ConvModule(hidden, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None)

    def transform(self, x: Tensor) -> Tensor:
        """The three convolutions without the identity."""
        return self.point_conv(self.depth_conv(self.inverted_conv(x)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H', W')."""
        out = self.transform(x)
        return x + out if self.residual else out


class _MBConvParts(MBConv):
    """Holds the parts of a dense MBConv under their own keys."""

    def __init__(self, dense: MBConv) -> None:
        BaseModule.__init__(self)
        if not isinstance(dense, MBConv) or not dense.residual:
            raise TypeError('expected an `MBConv` with identity to select channels of, found '
                            f'`{dense.__class__.__name__}`')
        self.residual = True
        self.inverted_conv = dense.inverted_conv
        self.depth_conv = dense.depth_conv
        self.point_conv = dense.point_conv
        self.training = dense.training


class GatedMBConv(_MBConvParts, SearchableLayer):
    """Supernet: ``x + g * MBConv(g * x)`` with one gate on both sides (KCR, section 3.1).

    Args:
        dense (MBConv): Of C channels; its parameters keep their keys.
        gate (BaseGate): Gate of C units, under the key ``gate``.

    Raises:
        TypeError: ``dense`` is no ``MBConv`` with identity.
    """

    def __init__(self, dense: MBConv, gate: BaseGate) -> None:
        super().__init__(dense)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        mask = self.gate().to(x.dtype)[:, None, None]
        return x + mask * self.transform(mask * x)

    def macs(self, size: Count, input_shape: Sequence[int]) -> Count:
        """Of the three convolutions: ``positions * h * (2 size + k^2)``."""
        kernel = math.prod(self.depth_conv.conv.kernel_size)
        hidden = self.depth_conv.conv.out_channels
        return math.prod(input_shape[-2:]) * hidden * (2 * size + kernel)

    def paper_cost(self, size: Count, input_shape: Sequence[int]) -> Count:
        """``l (2 size^2 + size)`` with its two point-wise layers (KCR, section 3.3)."""
        return 2 * (2 * size * size + size)


class SlicedMBConv(_MBConvParts):
    """Subnet: ``x[:, kept] += MBConv'(x[:, kept])``, hidden channels unchanged.

    Args:
        dense (MBConv | GatedMBConv): Of C channels.
        kept (Tensor): Kept channels, int64, ascending, shape (C~,).

    Raises:
        TypeError: ``dense`` is no ``MBConv`` with identity.
    """

    def __init__(self, dense: MBConv, kept: Tensor) -> None:
        super().__init__(dense)
        slice_conv(self.inverted_conv.conv, in_index=kept)
        slice_conv(self.point_conv.conv, out_index=kept)
        _slice_module_norm(self.point_conv, kept)
        self.register_buffer('kept', kept.clone())

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return add(x, self.kept, self.transform(take(x, self.kept, 1)), 1)


def _slice_module_norm(module: ConvModule, kept: Tensor) -> nn.Module:
    norm = module.norm
    return slice_norm(norm, kept) if norm is not None else module
