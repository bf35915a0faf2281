"""Small networks of every method, and what two of them give, compared.

All laws are tested in fp64, so that they say the same on every machine; the mask on queries and
keys is even a step function of its input, so that rounding may flip an entry.
"""

import functools
from typing import NamedTuple

import torch
from torch import nn

from mmkcr.apis import slim
from mmkcr.methods.named import (
    DCSEfficientViT,
    DCSMobileViT,
    DWConvVisionTransformer,
    KCREfficientViT,
    KCRSwinTransformer,
    KCRVisionTransformer,
    OFBResNet,
    OFBSwinTransformer,
    OFBVisionTransformer,
)

CHANNELS = dict(type='mmkcr.GumbelChannelGate', min_size=4)
FEW_CHANNELS = dict(CHANNELS, min_size=2)
OPTIONS = dict(type='mmkcr.BiMaskGate')
BLOCKS = dict(type='mmkcr.RelaxedTopKGate', count=2)
HEADS = dict(type='mmkcr.RelaxedTopKGate', count=5, blockwise=False)

VIT = dict(arch=dict(embed_dims=24, num_layers=3, num_heads=2, feedforward_channels=48),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=12, depths=[2, 2, 2], num_heads=[2, 2, 4]), img_size=56,
            window_size=4, patch_size=4, drop_path_rate=0.)
EFFICIENT = dict(arch=dict(widths=[8, 8, 16, 32], depths=[1, 1, 1, 2], head_dim=8))
MOBILE = dict(arch=[['mobilenetv2', 8, 1, 1, 2], ['mobilevit', 12, 2, 16, 24, 2, 2],
                    ['mobilevit', 16, 2, 24, 32, 1, 2]], stem_channels=8, out_indices=(2, ))
SEPARATE = dict(type='mmkcr.QKMask', separate=True)
OFB_VIT = dict(arch=dict(embed_dims=36, num_layers=2, num_heads=3, feedforward_channels=48),
               img_size=32, patch_size=8)
OFB_SWIN = dict(SWIN, arch=dict(embed_dims=12, depths=[1, 2, 1], num_heads=[2, 3, 4]))
RESNET = dict(depth=50, num_stages=2, strides=(1, 2), dilations=(1, 1), base_channels=8,
              stem_channels=8, norm_cfg=dict(type='BN', eps=1e-3), out_indices=(0, 1))
DWCONV_VIT = dict(VIT, arch=dict(VIT['arch'], num_heads=4))

LEVELS = dict(out_indices=(0, 1, 2))
AVERAGE = dict(out_type='avg_featmap', with_cls_token=False, layer_scale_init_value=0.3)


class Network(NamedTuple):
    """A network of a method, which adds ``gates`` to what its host is."""

    cls: type
    gates: dict
    kwargs: dict
    size: tuple[int, int]


NETWORKS = {
    'vit-cls': Network(KCRVisionTransformer, CHANNELS, dict(VIT, out_indices=(0, -1)), (32, 32)),
    'vit-featmap': Network(KCRVisionTransformer, CHANNELS, dict(
        VIT, out_type='featmap', out_indices=[1, 2]), (40, 24)),
    'vit-avg': Network(KCRVisionTransformer, CHANNELS, dict(VIT, **AVERAGE), (48, 32)),
    'vit-swiglu': Network(KCRVisionTransformer, CHANNELS, dict(
        VIT, layer_cfgs=dict(ffn_type='swiglu_fused')), (32, 32)),
    'swin-cls': Network(KCRSwinTransformer, CHANNELS, dict(SWIN, out_indices=(2, )), (56, 56)),
    'swin-dense-task': Network(KCRSwinTransformer, CHANNELS, dict(
        SWIN, **LEVELS, pad_small_map=True), (61, 83)),
    'kcr-efficientvit-cls': Network(KCREfficientViT, FEW_CHANNELS, EFFICIENT, (48, 48)),
    'kcr-efficientvit-dense-task': Network(KCREfficientViT, FEW_CHANNELS, dict(
        EFFICIENT, **LEVELS), (61, 83)),
    'efficientvit-cls': Network(DCSEfficientViT, FEW_CHANNELS, EFFICIENT, (48, 48)),
    'efficientvit-dense-task': Network(DCSEfficientViT, FEW_CHANNELS, dict(
        EFFICIENT, **LEVELS, local=True), (61, 83)),
    'efficientvit-qk-mask': Network(DCSEfficientViT, FEW_CHANNELS, dict(
        EFFICIENT, qk_mask=SEPARATE), (40, 56)),
    'efficientvit-arch2': Network(DCSEfficientViT, FEW_CHANNELS, dict(
        EFFICIENT, qk_mask=None), (40, 56)),
    'mobilevit-cls': Network(DCSMobileViT, FEW_CHANNELS, MOBILE, (48, 48)),
    'mobilevit-dense-task': Network(DCSMobileViT, FEW_CHANNELS, dict(MOBILE, **LEVELS), (61, 83)),
    'mobilevit-qk-mask': Network(DCSMobileViT, FEW_CHANNELS, dict(
        MOBILE, qk_mask=SEPARATE), (40, 56)),
    'mobilevit-arch2': Network(DCSMobileViT, FEW_CHANNELS, dict(MOBILE, qk_mask=None), (40, 56)),
    'ofb-vit-cls': Network(OFBVisionTransformer, OPTIONS, dict(
        OFB_VIT, out_indices=(0, -1)), (32, 32)),
    'ofb-vit-featmap': Network(OFBVisionTransformer, OPTIONS, dict(
        OFB_VIT, out_type='featmap', out_indices=[0, 1]), (40, 24)),
    'ofb-vit-avg': Network(OFBVisionTransformer, OPTIONS, dict(
        OFB_VIT, **AVERAGE, pre_norm=True), (48, 32)),
    'ofb-swin-cls': Network(OFBSwinTransformer, OPTIONS, dict(
        OFB_SWIN, out_indices=(2, )), (56, 56)),
    'ofb-swin-dense-task': Network(OFBSwinTransformer, OPTIONS, dict(
        OFB_SWIN, **LEVELS, pad_small_map=True, use_abs_pos_embed=True), (61, 43)),
    'ofb-resnet': Network(OFBResNet, OPTIONS, RESNET, (32, 40)),
}
# every network with both sorts of gates, and these with every operator
OPERATORS = 'dwconv', 'conv', 'ensembled-dwconv', 'spvit'
for _number, (_name, _kwargs, _size) in enumerate((
        ('class-token', dict(out_indices=(0, -1)), (32, 32)),
        ('patches', dict(out_type='featmap', with_cls_token=False, out_indices=[1, 2]), (40, 24)),
        ('registers', dict(out_type='featmap', num_registers=3), (24, 56)),
        ('registers-only', dict(AVERAGE, num_registers=2), (48, 32)),
        ('raw', dict(out_type='raw', num_registers=1, pre_norm=True), (32, 40)))):
    for _gates in (BLOCKS, HEADS):
        _operator = OPERATORS[(_number + 2 * (_gates is HEADS)) % 4]
        NETWORKS[f'{_operator}-{_name}'] = Network(DWConvVisionTransformer, _gates, dict(
            DWCONV_VIT, operator=_operator, **_kwargs), _size)


def randomise(model, seed=0):
    """Weights, gates, norms and their statistics at random, so that slicing them wrongly shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        fan = parameter[0].numel() if parameter.ndim > 1 else 10
        scale = 1. if name.endswith(('alpha', 'importance')) else fan**-0.5
        parameter.data.normal_(0, scale, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5, generator=generator)
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
    model.train(False)
    return model


def supernet(name, seed=0, weight=0.6):
    """In fp64; the importance of bi-masks counts by its weight."""
    cls, gates, kwargs, _ = NETWORKS[name]
    model = randomise(cls(**kwargs, gates=gates), seed).double()
    for gate in model.gates().values():
        if hasattr(gate, 'importance_weight'):
            gate.importance_weight.fill_(weight)
    return model


@functools.cache
def scene(name):
    """A supernet, its subnet and the structure, which no test changes."""
    model = supernet(name)
    return model, *slim(model, None, 1, (3, *NETWORKS[name].size))


def decide(model, structure):
    """Let the hard gates be those of a structure."""
    for site, gate in model.gates().items():
        kept = torch.tensor(structure.sites[site].kept)
        if gate.options() is None:
            gate.alpha.data.fill_(-1.)[kept] = 1.
            continue
        index = next(index for index in range(len(gate.options()))
                     if torch.equal(gate.selection(index), kept))
        gate.alpha.data.copy_(gate.only(index))


def outputs(model, x):
    """Of images in the precision of the weights."""
    with torch.no_grad():
        return model(x.to(next(model.parameters())))


def assert_same(one, two, tolerance=1e-12):
    """Relative to the largest output; by default of two networks in fp64."""
    assert len(one) == len(two) > 0
    for a, b in zip(one, two):
        assert a.shape == b.shape and torch.isfinite(a).all()
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * float(a.abs().max()))
