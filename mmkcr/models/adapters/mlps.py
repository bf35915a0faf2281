"""MLPs of the host libraries, one entry per class."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmkcr.core import Unsupported
from .views import BACKBONES, in_transformers, mlp_adapter, present, refuse_layer

_TIMM = 'timm.layers.mlp'
#: Why channels cannot be selected.
_IN_BLOCK = dict(why_no_channels='it is part of its block, without a place for a selection')
_NORMED = dict(why_no_channels='a norm follows its last layer')
_TWICE = dict(why_no_channels='its dropout is called twice, which leaves no place behind it')


def simple_mlp(*names: str, inputs: tuple[str, ...] = ('fc1', ),
               output: str | tuple[str, ...] = 'fc2', **others: Any) -> None:
    """Register MLPs whose parts have fixed local paths; a module that lacks ``inputs`` is no MLP.

    Arguments are those of :class:`~mmkcr.models.adapters.views.MLPView`, see
    :func:`~mmkcr.models.adapters.views.present`.
    """
    mlp_adapter(*names)(partial(present, dict(others, inputs=inputs, output=output)))


@mlp_adapter('mmcv.cnn.bricks.transformer.FFN', f'{BACKBONES}.deit3.DeiT3FFN')
def ffn(module: nn.Module) -> dict[str, Any]:
    """mmcv's ``FFN`` of two layers (ViT, Swin, BEiT, TNT, Twins, XCiT, DaViT ...); refuses others.
    """
    if module.num_fcs != 2:
        raise Unsupported(f'an `FFN` of {module.num_fcs} layers, where two are expected,')
    return dict(inputs=('layers.0.0', ), output='layers.1', after='dropout_layer',
                scales=('gamma2', ), width='feedforward_channels')


@mlp_adapter(f'{_TIMM}.Mlp', f'{_TIMM}.GluMlp', f'{_TIMM}.SwiGLU', f'{_TIMM}.ConvMlp')
def timm_mlp(module: nn.Module) -> dict[str, Any]:
    """timm's MLPs of tokens or maps; in ``GluMlp`` gate and value are one layer.

    Raises:
        Unsupported: A norm acts on hidden maps.
    """
    maps = isinstance(module.fc2, nn.Conv2d)
    if maps and not isinstance(module.norm, nn.Identity):
        raise Unsupported(f'`{type(module.norm).__name__}` acts on hidden maps')
    return present(dict(
        inputs=('fc1_g', 'fc1_x', 'fc1'), output='fc2', after='drop2', hidden_norm=('norm', ),
        why_no_channels='its input is a map, not tokens' if maps else ''), module)


@mlp_adapter('mmseg.models.backbones.mit.MixFFN', 'mmdet.models.backbones.pvt.MixFFN')
def mix_ffn(module: nn.Module) -> dict[str, Any]:
    """MLP of MiT and PVT with 1 x 1 convolutions, and possibly a depthwise one in between."""
    convs = [name for name, layer in module.layers.named_children() if isinstance(layer, nn.Conv2d)]
    first, *between, last = (f'layers.{name}' for name in convs)
    return dict(inputs=(first, ), between=tuple(between), output=last,
                after='dropout_layer', width='feedforward_channels')


@mlp_adapter(f'{BACKBONES}.convnext.ConvNeXtBlock', f'{BACKBONES}.edgenext.SDTAEncoder')
def pointwise_pair(module: nn.Module) -> dict[str, Any]:
    """The two pointwise layers that end a block of ConvNeXt and EdgeNeXt; refuses a norm between.
    """
    if getattr(module, 'grn', None) is not None:
        raise Unsupported('a global response norm mixes the hidden channels')
    return dict(_IN_BLOCK, inputs=('pointwise_conv1', ), output='pointwise_conv2')


def plain_bottleneck(block: nn.Module, convs: Sequence[int] = (1, 2, 3),
                     norms: Sequence[int] = (1, 2)) -> None:
    """Refuse a block of a ResNet that is no bottleneck of ordinary layers, without groups.

    Only the convolutions and norms of some numbers are looked at.
    """
    groups = getattr(getattr(block, 'conv2', None), 'groups', 1)
    if type(block).__name__ != 'Bottleneck' or groups > 1:
        raise Unsupported('expected bottlenecks without groups, found '
                          f'`{type(block).__name__}` with {groups} groups')
    for number in convs:
        plain_conv(getattr(block, f'conv{number}'))
    for number in norms:
        plain_norm(getattr(block, f'norm{number}'))


def plain_conv(layer: nn.Module) -> None:
    """Refuse a layer whose weights depend on each other, such as mmcv's ``ConvWS2d``."""
    name = type(layer).__name__
    if name not in ('Linear', 'Conv2d', 'ConvTranspose2d'):
        raise Unsupported(f'`{name}` has no adapter')


def plain_norm(norm: nn.Module) -> None:
    """Refuse a norm of a map whose statistics are over several channels."""
    if not isinstance(norm, _BatchNorm):
        raise Unsupported(f'`{type(norm).__name__}` mixes the channels')


@mlp_adapter(f'{BACKBONES}.resnet.Bottleneck')
def bottleneck(module: nn.Module) -> list[dict[str, Any]]:
    """The two inner widths of a bottleneck, each with the norm behind its convolution."""
    plain_bottleneck(module)
    return [dict(path=first, inputs=(first, ), between=(norm, ), output=last,
                 why_no_channels='a bottleneck has no MLP')
            for first, norm, last in (('conv1', module.norm1_name, 'conv2'),
                                      ('conv2', module.norm2_name, 'conv3'))]


@mlp_adapter('mmkcr.models.backbones.efficientvit.MBConv')
def mbconv(module: nn.Module) -> dict[str, Any]:
    """EfficientViT's inverted bottleneck; it reads the stream itself, without a norm."""
    for conv in (module.inverted_conv, module.depth_conv):
        if conv.with_norm:
            plain_norm(conv.norm)
    why, last = '', module.point_conv
    if not module.residual:
        why = 'it has no identity'
    elif last.with_norm and not isinstance(last.norm, _BatchNorm):
        why = f'`{type(last.norm).__name__}` mixes the channels'
    return present(dict(
        inputs=('inverted_conv.conv', ), output='point_conv.conv', why_no_channels=why,
        between=('inverted_conv.bn', 'depth_conv.conv', 'depth_conv.bn'), norm='before',
        after='after', scales=('point_conv.bn', )), module)


@mlp_adapter(*in_transformers(d_fine='DFineMLP'))
def d_fine_mlp(module: nn.Module) -> Any:
    """D-FINE's MLP of two layers; its heads have more."""
    return dict(inputs=('layers.0', ), output='layers.1') if len(module.layers) == 2 else []


# ---- mmpretrain ---------------------------------------------------------------------------------

# of DINOv2 and EVA-02, with a norm over the hidden layer or without
simple_mlp('mmpretrain.models.utils.swiglu_ffn.SwiGLUFFN', inputs=('w12', ), output='w3',
           after='dropout_layer', scales=('gamma2', ), hidden_norm=('norm', ))
simple_mlp(f'{BACKBONES}.mvit.MLP')
simple_mlp(f'{BACKBONES}.efficientformer.LinearMlp', after='drop2')
simple_mlp(f'{BACKBONES}.efficientformer.ConvMlp', between=('norm1', ), **_TWICE)
simple_mlp(f'{BACKBONES}.poolformer.Mlp', f'{BACKBONES}.tinyvit.MLP', **_TWICE)
simple_mlp(f'{BACKBONES}.hivit.Mlp', after='drop')
simple_mlp(f'{BACKBONES}.van.MixFFN', 'timm.models.pvt_v2.MlpWithDepthwiseConv',
           between=('dwconv', ), **_TWICE)
simple_mlp(f'{BACKBONES}.levit.MLP', inputs=('linear1.linear', ), between=('linear1.bn', ),
           output='linear2.linear', **_NORMED)
simple_mlp(f'{BACKBONES}.hornet.HorNetBlock', inputs=('pwconv1', ), output='pwconv2', **_IN_BLOCK)

# ---- timm and Hugging Face ----------------------------------------------------------------------

simple_mlp('timm.models.levit.LevitMlp', inputs=('ln1.linear', ), between=('ln1.bn', ),
           output='ln2.linear', **_NORMED)
simple_mlp(*in_transformers(
    vit='ViTMLP', swin='SwinMLP', clip='CLIPMLP', siglip='SiglipMLP', siglip2='Siglip2MLP',
    vitdet='VitDetMlp', sam='SamMLPBlock', dinov2='Dinov2MLP Dinov2SwiGLUFFN',
    dinov2_with_registers='Dinov2WithRegistersMLP Dinov2WithRegistersSwiGLUFFN',
    dinov3_vit='DINOv3ViTMLP DINOv3ViTGatedMLP', rt_detr='RTDetrMLP', beit='BeitMLP',
    vitpose_backbone='VitPoseBackboneMLP', detr='DetrMLP', maskformer='MaskFormerDetrMLP'),
    inputs=('fc1', 'lin1', 'gate_proj', 'up_proj', 'weights_in'),
    output=('fc2', 'lin2', 'down_proj', 'weights_out'))
simple_mlp(*in_transformers(segformer='SegformerMixFFN SegformerMixMLP'),
           inputs=('fc1', 'dense1'), between=('dwconv.dwconv', ), output=('fc2', 'dense2'),
           **_TWICE)
# before v5 the two layers are those of a block, or separate modules of it
simple_mlp(*in_transformers(
    rt_detr='RTDetrEncoderLayer RTDetrDecoderLayer', d_fine='DFineEncoderLayer',
    detr='DetrEncoderLayer DetrDecoderLayer', maskformer='DetrDecoderLayer',
    mask2former='Mask2FormerPixelDecoderEncoderLayer Mask2FormerMaskedAttentionDecoderLayer'),
    **_IN_BLOCK)
_DENSE = dict(inputs=('intermediate.dense', ), output='output.dense')
simple_mlp(*in_transformers(flava='FlavaLayer', vit='ViTLayer', swin='SwinLayer', beit='BeitLayer',
                            dpt='DPTViTLayer'),
           'transformers.models.maskformer.modeling_maskformer_swin.MaskFormerSwinLayer',
           norm='layernorm_after', after='output.dropout', **_DENSE)
simple_mlp(*in_transformers(swinv2='Swinv2Layer'),
           why_no_channels='a norm follows the MLP and mixes its channels', **_DENSE)
mlp_adapter(*in_transformers(vitpose_backbone='VitPoseBackboneMoeMLP'))(partial(
    refuse_layer, 'experts write some of its outputs'))
