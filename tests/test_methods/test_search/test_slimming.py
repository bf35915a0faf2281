"""Slimming a supernet of any floating type, under any default type, keeps the same units."""

import copy

import pytest
import torch

import mmkcr.models  # noqa: F401
from mmkcr.methods.search.slimming import slim
from mmkcr.registry import MODELS

SHAPE = (3, 32, 32)
# more units at a site than bf16 (256) or fp16 (2048) count in steps of 1
VIT = dict(img_size=32, patch_size=8, out_type='avg_featmap',
           arch=dict(embed_dims=320, num_layers=1, num_heads=4, feedforward_channels=2112))
BACKBONES = dict(
    kcr=dict(VIT, type='mmkcr.KCRVisionTransformer',
             gates=dict(type='mmkcr.GumbelChannelGate', min_size=4)),
    ofb=dict(VIT, type='mmkcr.OFBVisionTransformer', gates=dict(type='mmkcr.BiMaskGate')),
    resnet=dict(type='mmkcr.OFBResNet', depth=50, num_stages=1, strides=(1, ), dilations=(1, ),
                base_channels=288, out_indices=(0, ), gates=dict(type='mmkcr.BiMaskGate')),
    dcs=dict(type='mmkcr.DCSEfficientViT', img_size=32,
             arch=dict(widths=[8, 32, 512], depths=[1, 1, 1], head_dim=8),
             gates=dict(type='mmkcr.GumbelChannelGate', min_size=4)))


def distinct(number):
    """Numbers in random order that differ in bf16 and in fp16, of both signs."""
    steps = torch.arange((number + 1) // 2, dtype=torch.int16) + 0x3a00  # upwards from 2**-11
    values = steps.view(torch.bfloat16).float()
    return torch.cat([values, -values])[:number][torch.randperm(number)]


@pytest.fixture(scope='module', params=BACKBONES)
def supernet(request):
    """In fp32, of weights and gates that bf16 and fp16 hold exactly."""
    torch.manual_seed(1)
    model = MODELS.build(copy.deepcopy(BACKBONES[request.param]))
    for parameter in model.parameters():
        # ties of what is ranked would be broken by the type
        parameter.data.copy_(parameter.data.bfloat16().half())
    for gate in model.search_space.gates().values():
        for parameter in gate.parameters():
            parameter.data.copy_(distinct(parameter.numel()).view(parameter.shape))
    return model, slim(model, input_shape=SHAPE)


@pytest.mark.parametrize('under_default', [False, True])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16, torch.float64])
def test_same_units_and_weights(supernet, dtype, under_default):
    model, (expected, structure) = supernet
    assert any(len(site.kept) < site.total for site in structure.sites.values())
    assert max(site.kept[-1] for site in structure.sites.values()) > 256
    torch.set_default_dtype(dtype if under_default else torch.float32)
    try:
        subnet, found = slim(copy.deepcopy(model).to(dtype), input_shape=SHAPE)
    finally:
        torch.set_default_dtype(torch.float32)
    wanted, sizes = structure.to_dict(), found.to_dict()
    assert sizes['sites'] == wanted['sites'] and sizes['macs'] == wanted['macs']
    assert sizes['params'] == wanted['params']
    coarsest = max(map(torch.finfo, (dtype, torch.float32)), key=lambda info: info.eps)
    tolerance = dict(rtol=2 * coarsest.eps, atol=coarsest.tiny)
    state = subnet.state_dict()
    assert state.keys() == expected.state_dict().keys()
    for name, value in expected.state_dict().items():
        if not value.is_floating_point():
            assert torch.equal(state[name], value), name
            assert 'kept' not in name or state[name].dtype == torch.int64
        else:  # a mask that is folded is rounded, what is sliced alone never
            assert state[name].dtype == dtype
            torch.testing.assert_close(state[name].double(), value.double(), msg=name, **tolerance)
    with torch.no_grad():
        subnet.eval()  # of a backbone it gives nothing
        out = subnet(torch.randn(1, *SHAPE, dtype=dtype))
    assert all(torch.isfinite(value).all() and value.dtype == dtype for value in out)
