"""Attention of the host libraries: where queries, keys and values are, and how heads are removed.

Most hosts compute with fewer heads once an attribute or two are changed. Where a host reshapes to
the width of its input, the layer is replaced by one of
:mod:`mmkcr.models.layers.sized_attention`, which computes the same with fewer heads. Callables of
a view are ``partial`` of functions of this module, so that networks can be pickled.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from mmkcr.core import Axis, Unsupported
from mmkcr.core.axes import along_outputs
from mmkcr.models.layers import sized_attention as ours
from mmkcr.models.layers import window_attention as windows
from mmkcr.models.layers.take_over import take_over
from .views import (
    BACKBONES,
    UNCALLED,
    attention_adapter,
    in_transformers,
    known_axes,
    present,
    record,
    refuse_layer,
)

_UTILS = 'mmpretrain.models.utils.attention'
_APART = ('q_proj', 'k_proj', 'v_proj')


@attention_adapter(f'{_UTILS}.MultiheadAttention')
def multihead_attention(module: nn.Module) -> dict[str, Any]:
    """mmpretrain's ``MultiheadAttention`` (ViT, DeiT, DeiT III, MobileViT, Conformer ...).

    Raises:
        Unsupported: A shortcut of the values, or a subclass of another library.
    """
    if module.v_shortcut:
        raise Unsupported('a shortcut adds the values to the output of the attention')
    if type(module).__name__ != 'MultiheadAttention':
        raise Unsupported(f'`{type(module).__name__}` has no adapter')
    return dict(projections=('qkv', ), output='proj', resize=_resize_multihead)


def _resize_multihead(layer: nn.Module, heads: int, width: int) -> nn.Module:
    product = layer.scaled_dot_product_attention
    if 'scale' in getattr(product, 'keywords', {}):  # the host divides by it
        layer.scaled_dot_product_attention = partial(
            product.func, scale=product.keywords['scale'] * (width / layer.head_dims)**0.5)
    layer.embed_dims = heads * width
    return record(layer, heads, width)


def _of_whole_heads(layer: nn.Module) -> list[Axis]:
    """Axes of the biases, and of projections that keep a head's q, k and v side by side."""
    keys, values = layer.key_dim, layer.d
    # one unit is a head: `inner` adjacent rows with its queries, keys and values
    axes = [Axis(layer, 'attention_biases')]
    for name, inner in (('qkv', 2 * keys + values), ('kv', keys + values), ('q.1', keys)):
        projection = dict(layer.named_modules()).get(name)
        for part in () if projection is None else projection.modules():
            axes += along_outputs(part, inner=inner)
    return axes


def _resize_biased(layer: nn.Module, heads: int, width: int) -> nn.Module:
    layer.num_heads, layer.nh_kd, layer.dh = heads, heads * layer.key_dim, heads * width
    if hasattr(layer, 'ab'):  # the biases as evaluation reads them
        layer.ab = layer.attention_biases.detach()[:, layer.attention_bias_idxs]
    return layer


@attention_adapter('timm.layers.attention.Attention')
def timm_attention(module: nn.Module) -> dict[str, Any]:
    """timm's ``Attention`` (ViT, DINOv2, SigLIP 2 ...).

    Raises:
        Unsupported: Heads that share a norm, a gate, or keys and values.
    """
    if module.gate is not None or not isinstance(module.norm, nn.Identity):
        raise Unsupported('a gate or norm acts on the heads together')
    if getattr(module, 'num_kv_groups', 1) > 1:
        raise Unsupported('heads share keys and values')
    split, plain = module._modules.get('qkv') is None, isinstance(module.q_norm, nn.Identity)
    return dict(projections=_APART if split else ('qkv', ), output='proj',
                why_no_width='' if plain else 'a norm acts over the channels of a head')


@attention_adapter('timm.layers.attention.AttentionRope')
def rotary_attention(module: nn.Module) -> dict[str, Any]:
    """timm's ``Attention`` with rotary positions."""
    layout = 'half' if getattr(module, 'rotate_half', False) else 'interleaved'
    return dict(timm_attention(module), rotary=layout,
                opened=partial(_open_rotary, ours.SizedRotaryAttention, layout))


@attention_adapter('timm.models.eva.EvaAttention')
def eva_attention(module: nn.Module) -> dict[str, Any]:
    """Attention of EVA-02 and DINOv3: the heads fill the input's width."""
    view = rotary_attention(module)
    return dict(view, resize=partial(_resize_opened, view['opened']))


def _open_rotary(cls: type[nn.Module], layout: str, layer: nn.Module) -> nn.Module:
    return take_over(cls, layer, rotary=ours.Rotary(layout))


def _resize_opened(opened: Callable[[nn.Module], nn.Module], layer: nn.Module, heads: int,
                   width: int) -> nn.Module:
    """Replace the layer, unless it is one of ours, by one that computes with any heads."""
    return record(layer if isinstance(layer, ours.Sized) else opened(layer), heads, width)


@attention_adapter(*in_transformers(
    clip='CLIPAttention', siglip='SiglipAttention', siglip2='Siglip2Attention'))
def contrastive_attention(module: nn.Module) -> dict[str, Any]:
    """Attention of CLIP and SigLIP: before v5 the heads fill the input's width."""
    resize = record
    if int(sys.modules['transformers'].__version__.split('.')[0]) < 5:
        resize = partial(_resize_opened, partial(take_over, ours.SizedHuggingFaceAttention))
    return dict(projections=_APART, output='out_proj', resize=resize)


@attention_adapter(*in_transformers(beit='BeitLayer'))
def beit_block(module: nn.Module) -> dict[str, Any]:
    """BEiT of transformers: since v5 the table of a layer's positions is in its block."""
    table = module._modules.get('relative_position_bias')
    return present(dict(
        path=('attention.attention', 'attention'), extra=partial(known_axes, table=table),
        output=('attention.o_proj', 'attention.output.dense'),
        projections=tuple(f'attention.{name}' for name in _PROJECTED['projections'])), module)


@attention_adapter('mmcv.cnn.bricks.transformer.MultiheadAttention')
def torch_attention(module: nn.Module) -> dict[str, Any]:
    """mmcv's attention around ``nn.MultiheadAttention`` (DETR, DINO, Mask2Former ...).

    Raises:
        Unsupported: A subclass, or keys and values of other widths.
    """
    inner = module.attn
    if type(inner) not in (nn.MultiheadAttention, ours.SizedMultiheadAttention):
        raise Unsupported(f'`{type(inner).__name__}` has no adapter')
    if inner.in_proj_weight is None or inner.bias_k is not None or inner.add_zero_attn or \
            inner.batch_first:
        raise Unsupported('an `nn.MultiheadAttention` with other widths of keys and values, keys '
                          'of its own, or the batch first')
    return dict(path='attn', projections=(), output='attn.out_proj', why_uncalled=UNCALLED,
                opened=_open_torch, why_no_width='its queries, keys and values are no layers')


def _open_torch(layer: nn.Module) -> nn.Module:
    drop = nn.Dropout(layer.dropout).train(layer.training)
    return take_over(ours.SizedMultiheadAttention, layer, drop=drop)


def _along_samples(layer: nn.Module) -> list[Axis]:
    # samples of a query in one head: each has an (x, y) offset and a weight
    samples = layer.num_levels * layer.num_points
    return [*along_outputs(layer.sampling_offsets, inner=2 * samples),
            *along_outputs(layer.attention_weights, inner=samples)]


def simple_attention(*names: str, projections: tuple[str, ...] = ('qkv', ),
                     output: str | tuple[str, ...] = 'proj', sized: type[nn.Module] | None = None,
                     **others: Any) -> None:
    """Register attention that holds all heads of queries, then of keys, then of values.

    ``sized`` is a class of ours that computes with any number of heads, if the host's own does not;
    all else is of :class:`~mmkcr.models.adapters.views.AttentionView`, see
    :func:`~mmkcr.models.adapters.views.present`.
    """
    if sized is not None:
        others['resize'] = partial(_resize_opened, partial(take_over, sized))
    attention_adapter(*names)(partial(present, dict(
        others, projections=projections, output=output)))


_COSINES = dict(why_uncalled=UNCALLED, why_no_width='its products are cosines over the whole head')
simple_attention(f'{_UTILS}.WindowMSA', 'mmdet.models.backbones.swin.WindowMSA',
                 'mmseg.models.backbones.swin.WindowMSA', sized=windows.SizedWindowAttention)
simple_attention(f'{_UTILS}.BEiTAttention', 'timm.models.beit.Attention',
                 sized=windows.SizedBEiTAttention)
# in pre-training it has a mask of its own
simple_attention(f'{BACKBONES}.mixmim.MixMIMWindowAttention', sized=windows.SizedMixMIMAttention)
simple_attention(f'{_UTILS}.WindowMSAV2', 'timm.models.swin_transformer_v2.WindowAttention',
                 sized=windows.SizedWindowAttentionV2, **_COSINES)
simple_attention('timm.models.swin_transformer.WindowAttention')
simple_attention(f'{BACKBONES}.twins.LocallyGroupedSelfAttention',
                 'mmseg.models.backbones.twins.LocallyGroupedSelfAttention',
                 sized=windows.SizedGroupedAttention)
simple_attention(f'{BACKBONES}.twins.GlobalSubsampledAttention', 'timm.models.pvt_v2.Attention',
                 projections=('q', 'kv'), sized=ours.SizedReducedAttention)
simple_attention(f'{BACKBONES}.xcit.ClassAttntion', sized=ours.SizedClassAttention,
                 projections=('q', 'k', 'v'))
simple_attention(f'{BACKBONES}.xcit.XCA', sized=ours.SizedCrossCovariance,
                 why_no_width='its softmax is over the channels of a head')
simple_attention(f'{BACKBONES}.vit_sam.Attention',
                 *in_transformers(sam='SamVisionAttention', vitdet='VitDetAttention'),
                 why_no_width='its positions have channels that all heads share')
simple_attention(f'{BACKBONES}.vit_eva02.AttentionWithRoPE',
                 why_no_width='its positions are no rotations of pairs of channels')
# wide values, biases by offset; an activation and a layer with its norm may end it
simple_attention(f'{BACKBONES}.levit.Attention', f'{BACKBONES}.levit.AttentionSubsample',
                 f'{BACKBONES}.efficientformer.AttentionWithBias', f'{_UTILS}.LeAttention',
                 projections=(), output=('proj.1.linear', 'proj'), resize=_resize_biased,
                 of_heads=_of_whole_heads, **dict.fromkeys(
                     ('why_no_width', 'why_uncalled'),
                     'its queries, keys and values lie side by side, head by head'))
# its heads sample the values at their own places
simple_attention('mmcv.ops.multi_scale_deform_attn.MultiScaleDeformableAttention',
                 projections=('value_proj', ), output='output_proj', of_heads=_along_samples,
                 why_no_width='its heads have no queries and keys')
# before v5 a module of projections, then a layer
_PROJECTED = dict(
    path=('attention', 'self'), output=('o_proj', 'out_proj', 'output.dense'),
    projections=_APART + tuple(f'{name}.{part}' for name in ('attention', 'self')
                               for part in ('query', 'key', 'value')))
simple_attention(*in_transformers(
    vit='ViTAttention', dinov2='Dinov2Attention', swin='SwinAttention', flava='FlavaAttention',
    dinov2_with_registers='Dinov2WithRegistersAttention', segformer='SegformerAttention',
    rt_detr='RTDetrSelfAttention', d_fine='DFineSelfAttention', dpt='DPTViTAttention',
    vitpose_backbone='VitPoseBackboneAttention', detr='DetrSelfAttention DetrCrossAttention',
    maskformer='MaskFormerDetrSelfAttention MaskFormerDetrCrossAttention'),
    'transformers.models.maskformer.modeling_maskformer_swin.MaskFormerSwinAttention', **_PROJECTED)
simple_attention(*in_transformers(swinv2='Swinv2Attention'), **_PROJECTED,
                 why_no_width=_COSINES['why_no_width'])
attention_adapter(*in_transformers(
    detr='DetrAttention', maskformer='DetrAttention', mask2former='Mask2FormerAttention'))(partial(
        refuse_layer, 'its heads fill the width of its input'))
simple_attention(*in_transformers(dinov3_vit='DINOv3ViTAttention'), projections=_APART,
                 output='o_proj', rotary='half',
                 opened=partial(_open_rotary, ours.SizedHuggingFaceRotaryAttention, 'half'))
