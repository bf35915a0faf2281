"""Inverted bottlenecks of EfficientViT.

Shapes: B batch, C channels, H x W positions.
"""

from collections.abc import Mapping

from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from torch import Tensor, nn


class DSConv(BaseModule):
    """Depthwise separable convolution, with an optional residual connection.

    Args:
        in_channels (int): Input channels.
        out_channels (int): Output channels.
        stride (int): Stride of the depthwise convolution. Defaults to 1.
        residual (bool): Add the input; only where the shape stays. Defaults to False.
        norm_cfg (dict): Norm after each convolution. Defaults to batch norm.
        act_cfg (dict): Activation after the depthwise convolution. Defaults to Hardswish.
    """

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 stride: int = 1,
                 residual: bool = False,
                 norm_cfg: Mapping | None = dict(type='BN'),
                 act_cfg: Mapping | None = dict(type='HSwish')) -> None:
        super().__init__()
        self.residual = residual
        self.depth_conv = ConvModule(in_channels, in_channels, 3, stride, 1, groups=in_channels,
                                     norm_cfg=norm_cfg, act_cfg=act_cfg)
        self.point_conv = ConvModule(in_channels, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H', W')."""
        out = self.point_conv(self.depth_conv(x))
        return x + out if self.residual else out


class MBConv(BaseModule):
    """Inverted bottleneck: expanding, depthwise and pointwise convolution.

    It is EfficientViT's local module.

    Args:
        in_channels (int): Input channels.
        out_channels (int): Output channels.
        expand_ratio (float): Ratio of hidden to input channels. Defaults to 4.
        fewer_norm (bool): Biases instead of norms after the first two convolutions, as in the
            stages with attention. Defaults to False.
        stride, residual, norm_cfg: As of :class:`DSConv`.
        act_cfg (dict): Activation after the first two convolutions. Defaults to Hardswish.
    """

    def __init__(self,
                 in_channels: int,
                 out_channels: int,
                 expand_ratio: float = 4,
                 stride: int = 1,
                 fewer_norm: bool = False,
                 residual: bool = False,
                 norm_cfg: Mapping | None = dict(type='BN'),
                 act_cfg: Mapping | None = dict(type='HSwish')) -> None:
        super().__init__()
        self.residual = residual
        hidden = round(in_channels * expand_ratio)
        inner = dict(norm_cfg=None if fewer_norm else norm_cfg, act_cfg=act_cfg, bias=fewer_norm)
        self.inverted_conv = ConvModule(in_channels, hidden, 1, **inner)
        self.depth_conv = ConvModule(hidden, hidden, 3, stride, 1, groups=hidden, **inner)
        self.point_conv = ConvModule(hidden, out_channels, 1, norm_cfg=norm_cfg, act_cfg=None)
        # in a subnet: take the kept channels of the stream, and put them back at their positions
        self.before, self.after = nn.Identity(), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C', H', W')."""
        out = self.after(self.point_conv(self.depth_conv(self.inverted_conv(self.before(x)))))
        return x + out if self.residual else out
