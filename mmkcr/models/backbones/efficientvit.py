"""EfficientViT of MIT (Cai et al. 2023), B0 to B3, and its classification head.

Shapes: B batch, C channels, H x W positions.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from mmcv.cnn import ConvModule, build_activation_layer
from mmengine.model import BaseModule, ModuleList, Sequential
from mmpretrain.models.backbones.base_backbone import BaseBackbone
from mmpretrain.models.heads import ClsHead
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.models.layers.lite_mla import LiteMLA
from mmkcr.registry import MODELS


class DSConv(BaseModule):
    """Depthwise separable convolution with a residual connection."""

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

    With a ``stride`` of 1 the input is added. ``fewer_norm`` puts biases instead of norms after the
    first two convolutions, as in the stages with attention.
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


@MODELS.register_module()
class EfficientViT(BaseBackbone):
    """EfficientViT, B series: convolutions, then lightweight multi-scale linear attention.

    `EfficientViT: Multi-Scale Linear Attention for High-Resolution Dense Prediction
    <https://arxiv.org/abs/2205.14756>`_. With the weights of timm's ``efficientvit_b*``
    (``tools/model_converters/efficientvit_timm.py``) it gives timm's outputs. The options ``eps``
    and ``quadratic`` cover what differs in the official code.

    Args:
        arch (str | dict): 'b0', 'b1', 'b2' or 'b3', or a dict of ``widths`` (stem, then stages),
            ``depths`` (alike), ``head_dim``, and optionally ``attention_stages`` (how many of
            the last stages have attention, 2) and ``expand_ratio`` (4). Defaults to 'b1'.
        img_size (int): The most common image size. Any size can be run; the commands count MACs
            at this size. Defaults to 224.
        in_channels (int): Channels of the image. Defaults to 3.
        out_indices (Sequence[int]): Stages whose output is returned; stage i has stride
            ``2 ** (i + 2)``, negative ones count from the last. Defaults to (-1, ).
        frozen_stages (int): 0 freezes the stem, i the stem and i stages. Defaults to -1, none.
        norm_eval (bool): Keep batch norms in eval mode. Defaults to False.
        eps, quadratic: See :class:`~mmkcr.models.layers.lite_mla.LiteMLA`. Default to 1e-5, False.
        norm_cfg, act_cfg (dict): Default to batch norm and Hardswish.
        init_cfg (dict | list, optional): See ``BaseModule``.
    """

    arch_zoo = dict(
        b0=dict(widths=[8, 16, 32, 64, 128], depths=[1, 2, 2, 2, 2], head_dim=16),
        b1=dict(widths=[16, 32, 64, 128, 256], depths=[1, 2, 3, 3, 4], head_dim=16),
        b2=dict(widths=[24, 48, 96, 192, 384], depths=[1, 3, 4, 4, 6], head_dim=32),
        b3=dict(widths=[32, 64, 128, 256, 512], depths=[1, 4, 6, 6, 9], head_dim=32))

    def __init__(self, arch: str | Mapping[str, Any] = 'b1', img_size: int = 224,
                 in_channels: int = 3, out_indices: Sequence[int] = (-1, ),
                 frozen_stages: int = -1, norm_eval: bool = False, eps: float = 1e-5,
                 quadratic: bool = False, norm_cfg: Mapping = dict(type='BN'),
                 act_cfg: Mapping = dict(type='HSwish'),
                 init_cfg: Mapping | Sequence[Mapping] | None = [
                     dict(type='Kaiming', layer='Conv2d'),
                     dict(type='Constant', val=1, layer=['_BatchNorm', 'GroupNorm'])]) -> None:
        super().__init__(init_cfg)
        arch, self.img_size = self._arch(arch), img_size
        self.widths = widths = arch['widths']
        depths, stages = arch['depths'], len(widths) - 1
        indices = [out_indices] if isinstance(out_indices, int) else list(out_indices)
        if not -stages <= min(indices) <= max(indices) < stages:
            raise ValueError(f'expected `out_indices` within [{-stages}, {stages - 1}], found '
                             f'{indices}')
        self.out_indices = [index % stages for index in indices]
        if not -1 <= frozen_stages <= stages:
            raise ValueError(f'expected `frozen_stages` within [-1, {stages}], found '
                             f'{frozen_stages}')
        self.frozen_stages, self.norm_eval = frozen_stages, norm_eval
        cfg = dict(norm_cfg=norm_cfg, act_cfg=act_cfg)
        self.stem = Sequential(ConvModule(in_channels, widths[0], 3, 2, 1, **cfg),
                               *(DSConv(widths[0], **cfg) for _ in range(depths[0])))
        cfg['expand_ratio'] = arch.get('expand_ratio', 4)
        attention = dict(head_dim=arch['head_dim'], eps=eps, quadratic=quadratic)
        self.stages = ModuleList()
        for stage, (before, width, depth) in enumerate(zip(widths, widths[1:], depths[1:])):
            attends = stage >= stages - arch.get('attention_stages', 2)
            blocks = [MBConv(before, width, stride=2, fewer_norm=attends, **cfg)]
            if attends:
                # context, then local information
                blocks += [Sequential(OrderedDict(
                    attn=LiteMLA(width, norm_cfg=norm_cfg, **attention),
                    local=MBConv(width, width, fewer_norm=True, **cfg))) for _ in range(depth)]
            else:
                blocks += [MBConv(width, width, **cfg) for _ in range(depth - 1)]
            self.stages.append(Sequential(*blocks))
        self._freeze()  # now, as what runs in several processes asks before `train`

    @classmethod
    def _arch(cls, arch: str | Mapping[str, Any]) -> Mapping[str, Any]:
        arch = cls.arch_zoo.get(arch.lower(), arch) if isinstance(arch, str) else arch
        needed, known = {'widths', 'depths', 'head_dim'}, {'attention_stages', 'expand_ratio'}
        if not isinstance(arch, Mapping) or not needed <= set(arch) <= needed | known or \
                not 2 <= len(arch['widths']) == len(arch['depths']):
            raise ValueError(f'expected `arch` of `{cls.__name__}` among {sorted(cls.arch_zoo)} '
                             f'or a dict with {sorted(needed)} (and of {sorted(known)}), with as '
                             'many `depths` as `widths`, for the stem and at least one stage, '
                             f'found {arch!r}')
        return arch

    def forward(self, x: Tensor) -> tuple:
        """Images (B, 3, H, W) to maps of the stages in ``out_indices``, in the stages' order.

        They are (B, width, H / stride, W / stride) each, rounded up.
        """
        x = self.stem(x)
        outs = []
        for stage in self.stages:
            x = stage(x)
            outs.append(x)
        return tuple(outs[index] for index in sorted(self.out_indices))

    def _freeze(self) -> None:
        for part in [self.stem, *self.stages][:self.frozen_stages + 1]:
            nn.Module.train(part, False)
            part.requires_grad_(False)

    def train(self, mode: bool = True) -> 'EfficientViT':
        """Set the mode of all parts that are not frozen."""
        super().train(mode)
        self._freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self


@MODELS.register_module()
class EfficientViTClsHead(ClsHead):
    """Point convolution, global average, two linear layers with a layer norm between them.

    It pools itself: the classifier has no neck.

    Args:
        num_classes, in_channels (int): Classes, and channels of the backbone's last stage.
        widths (Sequence[int]): Widths of convolution and hidden layer: 1024 and 1280 for B0,
            1536 and 1600 for B1, 2304 and 2560 for B2 and B3.
        dropout (float): Before the classifier. Defaults to 0.
        norm_cfg, act_cfg (dict): Default to batch norm, of the convolution, and Hardswish.
        init_cfg (dict | list, optional): Defaults to a normal of 0.02 for linear layers.
        **kwargs: See :class:`mmpretrain.models.heads.ClsHead`.
    """

    def __init__(self, num_classes: int, in_channels: int, widths: Sequence[int],
                 dropout: float = 0., norm_cfg: Mapping = dict(type='BN'),
                 act_cfg: Mapping = dict(type='HSwish'),
                 init_cfg: Mapping | Sequence[Mapping] | None = [
                     dict(type='Kaiming', layer='Conv2d'),
                     dict(type='TruncNormal', layer='Linear', std=.02)], **kwargs: Any) -> None:
        super().__init__(init_cfg=init_cfg, **kwargs)
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
