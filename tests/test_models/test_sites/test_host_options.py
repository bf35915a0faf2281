"""Options of the hosts' backbones: the law holds with them, or a kind says why it is not there.

In fp64, as in `test_coverage`.
"""

import copy
import operator

import pytest
import torch
from mmengine.model import convert_sync_batchnorm, revert_sync_batchnorm
from mmengine.registry import MODELS
from mmpretrain.models import VisionTransformer
from timm.layers.attention import AttentionRope
from timm.models.swin_transformer_v2 import WindowAttention
from torch import nn

from lab.kind_coverage import GATES, Family, _mm, law_error
from mmkcr.methods.named import DWConvVisionTransformer
from mmkcr.models import Searchable
from mmkcr.models.adapters import attention_views
from mmkcr.models.layers.window_attention import SizedWindowAttentionV2
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites import why_not

ARCH = dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=48)
BI_MASKS = {kind: dict(type='mmkcr.BiMaskGate') for kind in GATES if kind != 'head_operator'}


def vit(name='VisionTransformer', **arguments):
    return _mm('mmpretrain', name, other=None, **{
        **dict(arch=ARCH, img_size=64, patch_size=16), **arguments})


def swin(**arguments):
    return _mm('mmpretrain', 'SwinTransformer', other=None, **{**dict(
        arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=64, window_size=4,
        out_indices=[0, 1], pad_small_map=True), **arguments})


def resnet(name='ResNet', **arguments):
    return _mm('mmpretrain', name, other=None, **{**dict(
        depth=50, base_channels=8, stem_channels=8, out_indices=(0, 1, 2, 3)), **arguments})


def efficientvit(**arguments):
    return _mm('mmkcr', 'EfficientViT', other=None, arch=dict(
        widths=[8, 16, 24], depths=[1, 1, 1], head_dim=8, attention_stages=1), **arguments)


def half_of_the_patches(model, images):
    mask = torch.arange(16) % 2
    if 'Swin' in type(model).__name__:
        return list(model(images, mask.expand(len(images), 16, 16)))
    return [model(images, mask.expand(len(images), 16))]


MASKED_SWIN = _mm('mmpretrain', 'SimMIMSwinTransformer', other=None, arch=dict(
    embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=64, out_indices=[1],
    pad_small_map=True)._replace(forward=half_of_the_patches)


def of_two_mixed_images(model, images):
    torch.manual_seed(0)  # the mask is drawn
    return list(model(images)[:1])


MIXED = _mm('mmpretrain', 'MixMIMPretrainTransformer', other=None, arch=dict(
    embed_dims=16, depths=[1, 1, 1, 1], num_heads=[2, 2, 4, 4]), img_size=128, size=128,
    window_size=[4, 4, 4, 4])._replace(forward=of_two_mixed_images)
REGISTERS = _mm('mmkcr', 'DWConvVisionTransformer', other=None, arch=ARCH, img_size=64,
                patch_size=16, num_registers=3, out_type='raw')


@pytest.mark.parametrize('gates', [GATES, BI_MASKS], ids=['gumbel', 'bi-mask'])
@pytest.mark.parametrize('family, kind', [
    pytest.param(vit(patch_cfg=dict(norm_cfg=dict(type='LN'))), 'embedding', id='patch-norm'),
    pytest.param(vit('MaskFeatViT')._replace(forward=half_of_the_patches), 'embedding',
                 id='mask-token'),
    pytest.param(MASKED_SWIN, 'embedding', id='mask-token-of-swin'),
    pytest.param(MIXED, 'heads', id='two-mixed-images'),
    pytest.param(REGISTERS, 'embedding', id='registers'),
    pytest.param(swin(norm_cfg=None), 'embedding', id='no-output-norms'),
    pytest.param(swin(out_indices=(1, 0)), 'embedding', id='outputs-of-swin-in-another-order'),
    pytest.param(swin(stage_cfgs=dict(downsample_cfg=dict(kernel_size=3))), 'embedding',
                 id='nine-merged'),
    pytest.param(resnet(out_indices=(3, 1)), 'embedding', id='outputs-in-another-order'),
    pytest.param(resnet('ResNeSt'), 'embedding', id='split-attention'),
    pytest.param(vit(layer_cfgs=dict(act_cfg=dict(type='HSigmoid'))), 'mlp_hidden',
                 id='activation-that-moves-0'),
    pytest.param(efficientvit(norm_cfg=None), 'mlp_channels', id='no-norms'),
    pytest.param(efficientvit(norm_cfg=dict(type='GN', num_groups=2)), 'mlp_hidden',
                 id='group-norm-behind'),
])
def test_the_law_holds_with_options(family, kind, gates):
    error, moved = law_error(family, [kind], 1, gates=gates)
    assert error < 1e-12 and moved > 1e-6


@pytest.mark.parametrize('family, kinds, message', [
    pytest.param(vit(layer_cfgs=dict(num_fcs=3)), ['embedding'], 'of 3 layers', id='three-layers'),
    pytest.param(swin(stage_cfgs=dict(block_cfgs=dict(ffn_cfgs=dict(num_fcs=3)))), ['embedding'],
                 'of 3 layers', id='three-layers-of-swin'),
    pytest.param(swin(stage_cfgs=dict(downsample_cfg=dict(norm_cfg=None))), ['embedding'],
                 'merged without a norm', id='merging-without-norm'),
    pytest.param(vit('MAEViT'), ['embedding', 'head_operator'], '`MAEViT`', id='MAE'),
    pytest.param(_mm('mmpretrain', 'BEiTViT', arch=ARCH, img_size=64, patch_size=16,
                     use_rel_pos_bias=False, use_shared_rel_pos_bias=True,
                     layer_cfgs=dict(bias=True)), ['heads', 'head_channels'],
                 'all layers share the position biases', id='shared-positions'),
    pytest.param(resnet(stem_channels=32), ['embedding'], 'first shortcut of `layer1`', id='stem'),
    pytest.param(resnet(norm_cfg=dict(type='GN', num_groups=2)), ['embedding', 'mlp_hidden'],
                 '`GroupNorm` mixes the channels', id='group-norm'),
    pytest.param(resnet(conv_cfg=dict(type='ConvWS')), ['embedding', 'mlp_hidden'],
                 '`ConvWS2d` has no adapter', id='normalised-weights'),
    pytest.param(resnet('Res2Net', scales=4, base_width=4), ['embedding', 'mlp_hidden'],
                 'found `Bottle2neck`', id='Res2Net'),
    pytest.param(resnet('ResNeSt'), ['mlp_hidden'], '`SplitAttentionConv2d`', id='ResNeSt'),
    pytest.param(efficientvit(norm_cfg=dict(type='GN', num_groups=2)), ['mlp_channels'],
                 '`GroupNorm` mixes the channels', id='group-norm-of-the-stream'),
])
def test_options_that_a_kind_refuses(family, kinds, message):
    host = family.build()
    for kind in kinds:
        assert message in why_not(host, kind), kind


def test_an_activation_that_learns_what_it_makes_of_0():
    """StarReLU in timm's MetaFormers: its bias is 0 before any training."""
    pytest.importorskip('timm')
    from timm.models import metaformer
    norms = [metaformer.LayerNorm2dNoBias, metaformer.LayerNormNoBias]
    family = Family('timm', lambda: metaformer.MetaFormer(
        depths=(1, 1), dims=(8, 32), num_classes=0, norm_layers=norms,
        token_mixers=[metaformer.SepConv, metaformer.Attention],
        res_scale_init_values=(None, 1.)))
    for gates in (GATES, BI_MASKS):
        error, moved = law_error(family, ['mlp_hidden'], gates=gates)
        assert error < 1e-12 and moved > 1e-6
    prelu = vit(layer_cfgs=dict(act_cfg=dict(type='PReLU')))
    supernet = Searchable(prelu.build(), sites=['mlp_hidden'], gates=GATES['mlp_hidden'])
    points = next(iter(supernet.search_space.sites.values())).mask_points()
    assert [point.side for point in points] == ['output']  # before it: no slope moves 0


@pytest.mark.parametrize('name', ['eva.Eva', 'beit.Beit'])
def test_biases_that_timm_adds_behind_the_projection(name):
    timm = pytest.importorskip('timm')

    def build():
        host = operator.attrgetter(name)(timm.models)(
            img_size=64, embed_dim=32, depth=1, num_heads=4, num_classes=0)
        host.blocks[0].attn.qkv_bias_separate = True
        return host

    family = Family('timm', build)
    kinds = [kind for kind in ('heads', 'head_channels') if not why_not(build(), kind)]
    assert kinds
    for kind in kinds:
        error, moved = law_error(family, [kind])
        assert error < 1e-12 and moved > 1e-6, kind
    assert 'not called as modules' in why_not(build(), 'qk_mask')


def test_deformable_attention_has_no_queries_and_keys_to_mask():
    ops = pytest.importorskip('mmcv.ops')
    host = torch.nn.Sequential(ops.MultiScaleDeformableAttention(embed_dims=32, num_heads=4))
    assert why_not(host, 'heads') == ''
    assert why_not(host, 'qk_mask') == 'its heads have no queries and keys at `0`'


@pytest.mark.parametrize('norm_cfg', [dict(type='BN'), dict(type='GN', num_groups=4)],
                         ids=['BN', 'GN'])
def test_channels_between_layers_with_normalised_weights(norm_cfg):
    """As in mmdet's configs `gn+ws`: without one input channel all other weights change."""
    config = dict(type='mmseg.UPerHead', in_channels=[16, 32], in_index=[0, 1], channels=8,
                  num_classes=3, norm_cfg=norm_cfg)
    assert why_not(MODELS.build(config), 'channels') == ''
    head = MODELS.build(dict(config, conv_cfg=dict(type='ConvWS')))
    assert why_not(head, 'channels') == '`ConvWS2d` has no adapter'


@pytest.mark.parametrize('name, sizes', [
    ('swinv2_cr_tiny_224', dict(embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4)),
    ('vit_relpos_base_patch32_plus_rpn_256', dict(embed_dim=32, depth=2, num_heads=4))])
def test_norms_behind_the_mlp_of_timm(name, sizes):
    """Their names are those of norms in front of it elsewhere."""
    timm = pytest.importorskip('timm')
    host = timm.create_model(name, img_size=64, num_classes=0, **sizes)
    blocks = {type(module) for module in host.modules() if hasattr(module, 'mlp')}
    for _ in range(2):
        assert why_not(host, 'mlp_channels')  # the MLPs of positions have no norm at all
        assert not why_not(host, 'mlp_hidden')
        for module in host.modules():  # then with subclasses of the blocks
            if type(module) in blocks:
                module.__class__ = type('Own', (type(module), ), {})


def test_norms_over_hidden_channels_of_timm():
    timm = pytest.importorskip('timm')
    for norm in (timm.layers.RmsNorm, timm.layers.LayerNorm):
        host = timm.create_model('vit_tiny_patch16_224', embed_dim=16, depth=1, num_heads=2,
                                 norm_layer=norm, scale_mlp_norm=True)
        assert ('`RmsNorm`' in why_not(host, 'mlp_hidden')) is (norm is timm.layers.RmsNorm)
    maps = timm.layers.ConvMlp(8, norm_layer=nn.BatchNorm2d)
    assert why_not(nn.Sequential(maps), 'mlp_hidden').startswith('`BatchNorm2d` acts on hidden')


@pytest.mark.parametrize('options', [dict(drop_path_rate=0.5),
                                     dict(layer_cfgs=dict(act_cfg=dict(type='RReLU')))])
def test_a_supernet_is_built_without_random_numbers(options):
    """With stochastic depth or random slopes: gates begin as they did for a seed."""
    host = MODELS.build(dict(type='mmpretrain.VisionTransformer', arch='deit-tiny', img_size=64,
                             **options))
    before = torch.get_rng_state()
    supernet = Searchable(host, sites=['mlp_hidden'], gates=dict(type='mmkcr.GumbelChannelGate'))
    assert len(supernet.search_space.gates()) == 12
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize('normalise', [
    torch.nn.utils.spectral_norm, torch.nn.utils.weight_norm,
    torch.nn.utils.parametrizations.spectral_norm, torch.nn.utils.parametrizations.weight_norm])
def test_weights_that_are_computed_are_refused(normalise):
    """A slice of such a weight would be written over at the next call."""
    host = VisionTransformer(ARCH, img_size=64, patch_size=16)
    normalise(host.layers[1].ffn.layers[1])
    with pytest.raises(ValueError, match=r'expected layers whose weights are parameters of their '
                       r'own, found a .*Linear` at `layers\.1\.ffn\.layers\.1` without such'):
        SearchSpace(host, ['mlp_hidden'])


def test_masks_stay_where_hosts_exchange_batch_norms():
    """MMEngine puts plain ones for `SyncBN` where there is one process, once a model is built."""
    supernet = MODELS.build(dict(
        type='mmkcr.OFBResNet', depth=50, base_channels=8, stem_channels=8,
        norm_cfg=dict(type='SyncBN'), gates=dict(type='mmkcr.BiMaskGate')))
    for backbone in (supernet, copy.deepcopy(supernet)):
        backbone.eval()
        images = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            before = backbone(images)[-1]
            for exchange in (revert_sync_batchnorm, convert_sync_batchnorm):
                exchange(backbone)
                backbone.eval()  # what is put there is in training
                assert torch.equal(backbone(images)[-1], before)


class OwnRope(AttentionRope):
    """A subclass by another name, as is the next."""


class OwnWindows(WindowAttention):
    """Of timm's Swin V2."""


def test_subclasses_of_attention_layers():
    """They are seen as what they inherit from, whatever their names and modules."""
    rope, windows = (attention_views(nn.Sequential(layer))[0] for layer in (
        OwnRope(16, 2), OwnWindows(16, (4, 4), 2)))
    assert rope.rotary and windows.resize.args[0].args == (SizedWindowAttentionV2, )


def test_register_tokens_are_those_of_the_first_layer():
    host = REGISTERS.build()
    assert host.get_layer_depth('backbone.register_tokens', 'backbone.') == (0, 4)
    assert host.get_layer_depth('head.register_tokens', 'backbone.') == (3, 4)
    for stages in (0, 1, 2):
        frozen = DWConvVisionTransformer(arch=ARCH, img_size=64, patch_size=16, num_registers=3,
                                         frozen_stages=stages)
        assert frozen.register_tokens.requires_grad == frozen.cls_token.requires_grad \
            == (stages == 0)
