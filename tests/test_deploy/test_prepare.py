"""Models prepared for a runtime compute what they computed before."""

import copy
from functools import partial

import pytest
import torch
from mmcv.cnn.bricks.transformer import FFN
from mmpretrain.models import MViT, SwinTransformer, VisionTransformer
from mmpretrain.models.backbones import TNT
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from timm.layers import Mlp
from timm.models.swin_transformer_v2 import SwinTransformerV2Block
from torch import nn
from torchvision.ops import Permute

from lab.kind_coverage import randomise
from mmkcr.apis import slim
from mmkcr.core.forward import flat_tensors
from mmkcr.deploy.latency import random_subnet
from mmkcr.deploy.prepare import GROUPED_FROM, RUNTIMES, describe_selections, prepare
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.models import KCREfficientViT, KCRSwinTransformer, KCRVisionTransformer
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
    SearchSpace.of_dense(model, kinds)
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


@pytest.mark.parametrize('runtime', RUNTIMES)
@pytest.mark.parametrize('cls, kwargs, kinds', NETS)
def test_the_same_outputs_and_the_model_is_left_as_it_is(cls, kwargs, kinds, runtime):
    model = subnet(cls, kwargs, kinds)
    before = copy.deepcopy(model.state_dict())
    assert_same(model, runtime)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class PostNorm(nn.Module):
    """A block of one's own, with the names that elsewhere a norm in front of the MLP has."""

    def __init__(self):
        super().__init__()
        self.mlp, self.norm2 = Mlp(16, 32), nn.LayerNorm(16)

    def forward(self, x):
        return x + self.norm2(self.mlp(x))


class OwnBlock(SwinTransformerV2Block):
    """A subclass of a block with a norm behind the MLP."""


def shared(part):
    """A norm that only one of two blocks has must not be folded into an MLP that both have."""
    model = VisionTransformer(**VIT)
    setattr(model.layers[1], part, getattr(model.layers[0], part))
    return model


@pytest.mark.parametrize('build, size', [
    *((lambda block=block: nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), Permute((0, 2, 3, 1)), block()), 32)
      for block in (PostNorm, lambda: OwnBlock(16, (8, 8), 2, window_size=4))),
    # the shortcut of the blocks that widen reads the norm in front of the MLP
    (lambda: MViT(arch=dict(embed_dims=16, num_layers=3, num_heads=1, downscale_indices=[1, 2]),
                  img_size=64, dim_mul_in_attention=False, out_scales=[2]), 64),
    # sizes of its tiles are lists
    (lambda: TNT(arch=dict(embed_dims_outer=24, embed_dims_inner=12, num_layers=1,
                           num_heads_outer=2, num_heads_inner=2), img_size=32), 32),
    (partial(shared, 'ffn'), 32), (partial(shared, 'ln2'), 32),
    # tiles that do not cover the map
    (lambda: SwinTransformer(
        arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=36, window_size=3,
        patch_size=4, pad_small_map=True, out_indices=[0, 1],
        stage_cfgs=dict(downsample_cfg=dict(padding=0))), 36)])
def test_blocks_and_layers_of_their_own(build, size):
    assert_same(randomise(build()), size=size, rtol=1e-6, atol=1e-5)


class OwnLayer(TransformerEncoderLayer):
    """A host's block under a name of one's own."""

    def __init__(self, **kwargs):
        super().__init__(16, 2, 32, **kwargs)


class ReadsTwice(FFN):
    """An MLP that adds what the norm gives."""

    def forward(self, x, identity=None):
        return super().forward(x, identity=identity) + x


class RunsTwice(TransformerEncoderLayer):
    """A block with a method of its own."""

    def forward(self, x):
        return super().forward(x) + self.ln2(x)


@pytest.mark.parametrize('layer, mlp, folded', [
    (TransformerEncoderLayer, FFN, True), (OwnLayer, FFN, True),
    (TransformerEncoderLayer, ReadsTwice, False), (RunsTwice, FFN, False)])
def test_subclasses_of_blocks_and_mlps_of_a_host(layer, mlp, folded):
    model = VisionTransformer(**VIT, out_type='featmap')
    width = model.embed_dims
    for block in model.layers:
        block.__class__ = layer
        block.ffn = mlp(width, 2 * width, act_cfg=dict(type='GELU'))
    ready = assert_same(randomise(model))
    assert {block.ln2.weight is None for block in ready.modules()
            if isinstance(block, TransformerEncoderLayer)} == {folded}


@pytest.mark.parametrize('dense', [False, True])
def test_norms_before_mlps_have_no_affine_part_left(dense):
    with pytest.raises(ValueError, match="a runtime among .*, found 'caffe'"):
        prepare(KCRVisionTransformer(**VIT), 'caffe')
    model = KCRVisionTransformer(**VIT) if dense else subnet(KCRVisionTransformer, VIT,
                                                            ['mlp_channels'])
    found = prepare(model, 'any').model
    assert not any(isinstance(module, SlicedLayerNorm) for module in found.modules())
    for layer in found.layers:
        norm = next(module for module in layer.ln2.modules() if isinstance(module, nn.LayerNorm))
        assert norm.weight is None and norm.bias is None and layer.ln1.weight is not None


def test_forms_follow_the_runtime_and_the_groups():
    scattered = subnet(KCRVisionTransformer, VIT, ['mlp_channels'])
    assert describe_selections(scattered, 'onnxruntime') == '4 elements'
    assert describe_selections(scattered, 'openvino') == '4 gather'
    hidden = subnet(KCRVisionTransformer, VIT, ['mlp_hidden'])
    assert describe_selections(hidden, 'onnxruntime') == 'none'
    wide = dict(VIT, arch=dict(VIT['arch'], embed_dims=4 * GROUPED_FROM))
    model = KCRVisionTransformer(**wide)
    space = model.search_space
    kept = torch.cat([torch.arange(GROUPED_FROM), torch.arange(2, 4).repeat_interleave(
        GROUPED_FROM) * GROUPED_FROM + torch.arange(GROUPED_FROM).repeat(2)])
    names = list(space.sites)
    space.slice_to(space.structure_for({names[0]: kept, names[1]: torch.arange(8)}))
    assert describe_selections(model, 'onnxruntime') == '2 grouped, 2 sliced'
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
    said = describe_selections(small, 'onnxruntime')
    assert 'grouped' in said and 'elements' not in said
