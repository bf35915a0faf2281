"""Classification head of EfficientViT (Cai et al. 2023)."""

from collections.abc import Mapping, Sequence
from typing import Any

from mmcv.cnn import ConvModule, build_activation_layer
from mmpretrain.models.heads import ClsHead
from torch import Tensor, nn

from mmkcr.registry import MODELS


@MODELS.register_module()
class EfficientViTClsHead(ClsHead):
    """Point convolution, global average, two linear layers with a layer norm between them.

    It pools itself: the classifier has no neck.

    Args:
        num_classes (int): Classes.
        in_channels (int): Channels of the backbone's last stage.
        widths (Sequence[int]): Widths of convolution and hidden layer: 1024 and 1280 for B0,
            1536 and 1600 for B1, 2304 and 2560 for B2 and B3.
        dropout (float): Before the classifier. Defaults to 0.
        norm_cfg (dict): Norm of the convolution. Defaults to batch norm.
        act_cfg (dict): Defaults to Hardswish.
        init_cfg (dict | list, optional): Defaults to a normal of 0.02 for linear layers.
        **kwargs: See :class:`mmpretrain.models.heads.ClsHead`.
    """

    def __init__(self,
                 num_classes: int,
                 in_channels: int,
                 widths: Sequence[int],
                 dropout: float = 0.,
                 norm_cfg: Mapping = dict(type='BN'),
                 act_cfg: Mapping = dict(type='HSwish'),
                 init_cfg: Mapping | Sequence[Mapping] | None = (
                     dict(type='Kaiming', layer='Conv2d'),
                     dict(type='TruncNormal', layer='Linear', std=.02)),
                 **kwargs: Any) -> None:
        super().__init__(
            init_cfg=list(init_cfg) if isinstance(init_cfg, tuple) else init_cfg, **kwargs)
        self.num_classes, self.in_channels = num_classes, in_channels
        self.in_conv = ConvModule(in_channels, widths[0], 1, norm_cfg=norm_cfg, act_cfg=act_cfg)
        self.hidden = nn.Linear(*widths, bias=False)
        self.norm = nn.LayerNorm(widths[1])
        self.act = build_activation_layer(act_cfg)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(widths[1], num_classes)

    def pre_logits(self, feats: Sequence[Tensor]) -> Tensor:
        """Features (B, widths[1]) that the classifier reads, of the last map (B, C, H, W)."""
        pooled = self.in_conv(feats[-1]).mean((2, 3))
        return self.act(self.norm(self.hidden(pooled)))

    def forward(self, feats: Sequence[Tensor]) -> Tensor:
        """Logits (B, num_classes) of feature maps."""
        return self.fc(self.dropout(self.pre_logits(feats)))
