"""Convolutions of EfficientViT: B batch, C channels, H x W positions."""

from collections.abc import Mapping

from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from torch import Tensor, nn


class DSConv(BaseModule):
    """Depthwise separable convolution with a residual connection.

    Args:
        channels (int): C.
        norm_cfg (dict): Norm after each convolution.
        act_cfg (dict): Activation after the depthwise convolution.
    """

    def __init__(self, channels: int, norm_cfg: Mapping, act_cfg: Mapping) -> None:
        super().__init__()
        self.depth_conv = ConvModule(channels, channels, 3, 1, 1, groups=channels,
                                     norm_cfg=norm_cfg, act_cfg=act_cfg)
        self.point_conv = ConvModule(channels, channels, 1, norm_cfg=norm_cfg, act_cfg=None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        return x + self.point_conv(self.depth_conv(x))


class MBConv(BaseModule):
    """Inverted bottleneck: expanding, depthwise and pointwise convolution.

    Args:
        in_channels (int): Input channels.
        out_channels (int): Output channels.
        expand_ratio (float): Ratio of hidden to input channels.
        norm_cfg, act_cfg: As of :class:`DSConv`, also of the first convolution.
        stride (int): Of the depthwise convolution; with 1 the input is added. Defaults to 1.
        fewer_norm (bool): Biases instead of norms after the first two convolutions, as in the
            stages with attention. Defaults to False.
    """

    def __init__(self, in_channels: int, out_channels: int, expand_ratio: float,
                 norm_cfg: Mapping, act_cfg: Mapping, stride: int = 1,
                 fewer_norm: bool = False) -> None:
        super().__init__()
        self.residual = stride == 1
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
