"""MLPs of the host libraries, one entry per class."""

from typing import Any, Dict, List

from torch import nn

from mmkcr.core import Unsupported
from .views import mlp_adapter, simple_mlp

_MM = 'mmpretrain.models.backbones'
_TIMM = 'timm.layers.mlp'
_HF = 'transformers.models'


@mlp_adapter('mmcv.cnn.bricks.transformer.FFN', f'{_MM}.deit3.DeiT3FFN')
def ffn(module: nn.Module) -> Dict[str, Any]:
    """mmcv's ``FFN`` of two layers (ViT, Swin, BEiT, TNT, Twins, XCiT, DaViT ...)."""
    if module.num_fcs != 2:
        raise Unsupported(f'an `FFN` of {module.num_fcs} layers, where two are expected,')
    return dict(inputs=('layers.0.0', ), output='layers.1', after='dropout_layer',
                scales=('gamma2', ), width='feedforward_channels')


@mlp_adapter('mmpretrain.models.utils.swiglu_ffn.SwiGLUFFN')
def swiglu_ffn(module: nn.Module) -> Dict[str, Any]:
    """mmpretrain's SwiGLU of DINOv2 and EVA-02, with a norm over the hidden layer or without."""
    return dict(inputs=('w12', ), parts=2, output='w3', after='dropout_layer', scales=('gamma2', ),
                hidden_norm=_unless_identity(module, 'norm'))


@mlp_adapter(f'{_TIMM}.Mlp', f'{_TIMM}.GluMlp', f'{_TIMM}.SwiGLU')
def timm_mlp(module: nn.Module) -> Dict[str, Any]:
    """timm's ``Mlp``, ``GluMlp`` (gate and value in one layer) and ``SwiGLU``."""
    split = hasattr(module, 'fc1_g')
    maps = isinstance(module.fc2, nn.Conv2d)
    return dict(inputs=('fc1_g', 'fc1_x') if split else ('fc1', ), output='fc2', after='drop2',
                parts=2 if hasattr(module, 'gate_last') else 1,
                hidden_norm=_unless_identity(module, 'norm'), dim=1 if maps else -1,
                **(dict(why_no_channels='its input is a map, not tokens') if maps else {}))


@mlp_adapter('mmseg.models.backbones.mit.MixFFN', 'mmdet.models.backbones.pvt.MixFFN')
def mix_ffn(module: nn.Module) -> Dict[str, Any]:
    """MLP of MiT and PVT with 1 x 1 convolutions, and possibly a depthwise one in between."""
    convs = [name for name, layer in module.layers.named_children() if isinstance(layer, nn.Conv2d)]
    first, *between, last = (f'layers.{name}' for name in convs)
    return dict(inputs=(first, ), between=tuple(between), output=last, dim=1,
                after='dropout_layer', width='feedforward_channels')


@mlp_adapter(f'{_MM}.convnext.ConvNeXtBlock', f'{_MM}.edgenext.SDTAEncoder')
def pointwise_pair(module: nn.Module) -> Dict[str, Any]:
    """The two pointwise layers that end a block of ConvNeXt and EdgeNeXt."""
    if getattr(module, 'grn', None) is not None:
        raise Unsupported('a global response norm mixes the hidden channels')
    maps = isinstance(module.pointwise_conv1, nn.Conv2d)
    return dict(inputs=('pointwise_conv1', ), output='pointwise_conv2', dim=1 if maps else -1,
                why_no_channels='it is part of its block, without a place for a selection')


@mlp_adapter(f'{_MM}.resnet.Bottleneck')
def bottleneck(module: nn.Module) -> List[Dict[str, Any]]:
    """The two inner widths of a bottleneck, each with the norm behind its convolution."""
    if type(module).__name__ != 'Bottleneck' or module.conv2.groups > 1:
        raise Unsupported('expected bottlenecks without groups, found '
                          f'`{type(module).__name__}` with {module.conv2.groups} groups')
    return [dict(path=first, inputs=(first, ), between=(norm, ), output=last, dim=1,
                 why_no_channels='a bottleneck has no MLP')
            for first, norm, last in (('conv1', module.norm1_name, 'conv2'),
                                      ('conv2', module.norm2_name, 'conv3'))]


def _unless_identity(module: nn.Module, name: str) -> str:
    return '' if isinstance(module._modules.get(name), (nn.Identity, type(None))) else name


_PLAIN = dict(inputs=('fc1', ), output='fc2')
_TWICE = dict(why_no_channels='its dropout is called twice, which leaves no place behind it')
simple_mlp(f'{_MM}.mvit.MLP', **_PLAIN, why_no_channels='nothing stands behind its last layer')
simple_mlp(f'{_MM}.efficientformer.LinearMlp', **_PLAIN, after='drop2')
simple_mlp(f'{_MM}.efficientformer.ConvMlp', **_PLAIN, between=('norm1', ), dim=1, **_TWICE)
simple_mlp(f'{_MM}.poolformer.Mlp', **_PLAIN, dim=1, **_TWICE)
simple_mlp(f'{_MM}.tinyvit.MLP', **_PLAIN, norm='norm', **_TWICE)
simple_mlp(f'{_MM}.hivit.Mlp', **_PLAIN, after='drop')
simple_mlp(f'{_MM}.van.MixFFN', **_PLAIN, between=('dwconv', ), dim=1, **_TWICE)
simple_mlp(f'{_MM}.levit.MLP', inputs=('linear1.linear', ), between=('linear1.bn', ),
           output='linear2.linear', why_no_channels='a norm follows its last layer')
simple_mlp(f'{_MM}.hornet.HorNetBlock', inputs=('pwconv1', ), output='pwconv2',
           why_no_channels='it is part of its block, without a place for a selection')
simple_mlp(f'{_TIMM}.ConvMlp', **_PLAIN, dim=1, why_no_channels='its input is a map, not tokens')
simple_mlp('timm.models.pvt_v2.MlpWithDepthwiseConv', **_PLAIN, between=('dwconv', ), **_TWICE)
simple_mlp('timm.models.levit.LevitMlp', inputs=('ln1.linear', ), between=('ln1.bn', ),
           output='ln2.linear', why_no_channels='a norm follows its last layer')


@mlp_adapter('mmkcr.models.layers.mbconv.MBConv')
def mbconv(module: nn.Module) -> Dict[str, Any]:
    """EfficientViT's inverted bottleneck; it reads the stream itself, without a norm."""
    between = [name for name in ('inverted_conv.bn', 'depth_conv.conv', 'depth_conv.bn')
               if _has(module, name)]
    found = dict(inputs=('inverted_conv.conv', ), between=tuple(between),
                 output='point_conv.conv', dim=1)
    if not module.residual:
        return dict(found, why_no_channels='it has no identity')
    return dict(found, norm='before', after='after', scales=('point_conv.bn', ), why_no_channels='')


def _has(module: nn.Module, path: str) -> bool:
    return any(name == path for name, _ in module.named_modules())


@mlp_adapter(f'{_HF}.vit.modeling_vit.ViTMLP',
             f'{_HF}.dinov2.modeling_dinov2.Dinov2MLP',
             f'{_HF}.clip.modeling_clip.CLIPMLP',
             f'{_HF}.siglip2.modeling_siglip2.Siglip2MLP',
             f'{_HF}.siglip.modeling_siglip.SiglipMLP',
             f'{_HF}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTMLP',
             f'{_HF}.dinov3_vit.modeling_dinov3_vit.DINOv3ViTGatedMLP')
def hugging_face_mlp(module: nn.Module) -> Dict[str, Any]:
    """MLPs of Hugging Face's vision encoders, gated or not."""
    names = [name for name in ('fc1', 'gate_proj', 'up_proj') if name in module._modules]
    return dict(inputs=tuple(names), output='fc2' if 'fc2' in module._modules else 'down_proj',
                why_no_channels='nothing stands behind its last layer')


simple_mlp(f'{_HF}.dinov2.modeling_dinov2.Dinov2SwiGLUFFN', inputs=('weights_in', ), parts=2,
           output='weights_out', why_no_channels='nothing stands behind its last layer')


@mlp_adapter(f'{_HF}.flava.modeling_flava.FlavaLayer', f'{_HF}.vit.modeling_vit.ViTLayer')
def split_mlp(module: nn.Module) -> Any:
    """MLP of FLAVA, and of ViT before v5, whose two layers are separate modules of the block."""
    if 'intermediate' not in module._modules:
        return []
    return dict(inputs=('intermediate.dense', ), output='output.dense',
                norm='layernorm_after', after='output.dropout', why_no_channels='')
