"""Models prepared for a runtime compute what they computed before."""

import copy

import pytest
import torch
from mmpretrain.models import SwinTransformer
from mmpretrain.models.backbones import TNT
from torch import nn

from lab.kind_coverage import randomise
from lab.model_zoo import random_subnet
from mmkcr.apis import slim
from mmkcr.core.forward import flat_tensors
from mmkcr.deploy.prepare import EXPORT_RUNTIMES, GROUPED_FROM, prepare
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.methods.named import KCREfficientViT, KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.selection import Put, Take
from mmkcr.models.search_space import SearchSpace

SHAPE = (3, 32, 32)
VIT = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=16, depths=[1, 2], num_heads=[2, 4]), img_size=32,
            window_size=4, patch_size=4, out_indices=[1])
EFFICIENT = dict(arch=dict(widths=[8, 16, 32], depths=[1, 1, 1], head_dim=8), out_indices=(0, 1))
NETS = [pytest.param(KCRVisionTransformer, VIT, ['mlp_channels'], id='vit'),
        pytest.param(KCRVisionTransformer, VIT, ['mlp_hidden', 'heads'], id='vit-hidden'),
        pytest.param(KCRSwinTransformer, SWIN, ['mlp_channels'], id='swin'),
        pytest.param(KCREfficientViT, EFFICIENT, ['mlp_channels'], id='efficientvit')]


def subnet(cls, kwargs, kinds, target='80%'):
    """A random subnet whose norms and weights are not those of initialisation."""
    torch.manual_seed(0)
    model = cls(**kwargs)
    SearchSpace(model, kinds)
    for parameter in model.parameters():
        parameter.data.normal_(0.1, 0.3)
    model, _ = random_subnet(model, target, SHAPE, divisor=1)
    model.eval()
    return model


def assert_same(model, runtime='any', size=32, rtol=1e-4, atol=1e-4):
    """The prepared model, which computes what the model computes."""
    model.train(False)  # MViT's `eval` returns nothing
    x, ready = torch.randn(2, 3, size, size), prepare(model, runtime)
    with torch.no_grad():
        for a, b in zip(flat_tensors(ready(x)), flat_tensors(TensorModel(model)(x)), strict=True):
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)
    return ready


@pytest.mark.parametrize('runtime', EXPORT_RUNTIMES)
@pytest.mark.parametrize('cls, kwargs, kinds', NETS)
def test_the_same_outputs_and_the_model_is_left_as_it_is(cls, kwargs, kinds, runtime):
    model = subnet(cls, kwargs, kinds)
    before = copy.deepcopy(model.state_dict())
    assert_same(model, runtime)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize('build, size', [
    # sizes of its tiles are lists
    (lambda: TNT(arch=dict(embed_dims_outer=24, embed_dims_inner=12, num_layers=1,
                           num_heads_outer=2, num_heads_inner=2), img_size=32), 32),
    # tiles that do not cover the map
    (lambda: SwinTransformer(
        arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=36, window_size=3,
        patch_size=4, pad_small_map=True, out_indices=[0, 1],
        stage_cfgs=dict(downsample_cfg=dict(padding=0))), 36)])
def test_tiles_of_any_size(build, size):
    assert_same(randomise(build()), size=size, rtol=1e-6, atol=1e-5)


def test_norms_are_split_from_their_selections():
    with pytest.raises(ValueError, match="a runtime among .*, found 'caffe'"):
        prepare(KCRVisionTransformer(**VIT), 'caffe')
    found = prepare(subnet(KCRVisionTransformer, VIT, ['mlp_channels']), 'any').model
    assert not any(isinstance(module, SlicedLayerNorm) for module in found.modules())
    assert all(isinstance(layer.ln2[0], nn.LayerNorm) for layer in found.layers)


def selections(model, runtime):
    """Forms of the selections of channels that are not contiguous."""
    return [module.form for module in prepare(model, runtime).modules()
            if isinstance(module, (Take, Put)) and not module.contiguous]


def test_forms_follow_the_runtime_and_the_groups():
    scattered = subnet(KCRVisionTransformer, VIT, ['mlp_channels'])
    assert selections(scattered, 'onnxruntime') == ['elements'] * 4
    assert selections(scattered, 'openvino') == ['gather'] * 4
    assert not selections(subnet(KCRVisionTransformer, VIT, ['mlp_hidden']), 'onnxruntime')
    wide = dict(VIT, arch=dict(VIT['arch'], embed_dims=4 * GROUPED_FROM))
    model = KCRVisionTransformer(**wide)
    space = model.search_space
    kept = torch.cat([torch.arange(GROUPED_FROM), torch.arange(2, 4).repeat_interleave(
        GROUPED_FROM) * GROUPED_FROM + torch.arange(GROUPED_FROM).repeat(2)])
    names = list(space.sites)
    space.slice_to(space.structure_for({names[0]: kept, names[1]: torch.arange(8)}))
    forms = [(module.form, module.group)
             for module in prepare(model, 'onnxruntime').modules()
             if isinstance(module, (Take, Put)) and not module.contiguous]
    assert forms == [('grouped', GROUPED_FROM)] * 2


@pytest.mark.parametrize('target', [None, '90%'])
def test_gates_of_groups_give_grouped_selections(target):
    """From a search with one gate for 16 neighbours to what a runtime copies as rows."""
    wide = dict(VIT, arch=dict(VIT['arch'], embed_dims=8 * GROUPED_FROM, num_layers=4))
    model = KCRVisionTransformer(**wide, gates=dict(type='mmkcr.GumbelChannelGate',
                                                    group=GROUPED_FROM))
    generator = torch.Generator().manual_seed(0)
    for gate in model.search_space.gates().values():
        assert gate.alpha.shape == (8, ) and len(gate.scores()) == 8 * GROUPED_FROM
        gate.alpha.data = torch.randn(8, generator=generator)
    model.eval()
    images = torch.randn(2, *SHAPE)
    small, structure = slim(model, target, input_shape=SHAPE)
    if target is None:  # the law: hard gates of the supernet, and the subnet
        small.eval()
        with torch.no_grad():
            torch.testing.assert_close(small(images)[0], model(images)[0])
    for site in structure.sites.values():
        assert 0 < len(site.kept) < site.total and len(site.kept) % GROUPED_FROM == 0
    assert set(selections(small, 'onnxruntime')) == {'grouped'}
