"""Permuted streams compute the same, and their selections are ranges where an order allows it."""

import copy

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models import VisionTransformer
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from mmpretrain.models.peft.lora import LoRALinear
from torch import nn

from mmkcr.apis.export import compare_onnx, export_onnx
from mmkcr.apis.latency import random_subnet
from mmkcr.deploy.prepare import describe_selections, prepare
from mmkcr.deploy.streams import permute_streams, range_order
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.models import KCREfficientViT, KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models.layers.selection import Put, is_range
from mmkcr.models.search_space import SearchSpace

SHAPE = (3, 32, 32)
VIT = dict(arch=dict(embed_dims=32, num_layers=3, num_heads=4, feedforward_channels=64),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=16, depths=[2, 3], num_heads=[2, 4]), img_size=32, window_size=4,
            patch_size=4)
NETS = [pytest.param(KCRVisionTransformer, VIT, 1, 2, id='vit'),
        pytest.param(KCRVisionTransformer, dict(
            VIT, out_type='featmap', out_indices=[0, 2], layer_scale_init_value=.1, pre_norm=True,
            with_cls_token=False), 1, 2, id='vit-maps'),
        pytest.param(KCRSwinTransformer, dict(SWIN, out_indices=[1]), 2, 4, id='swin'),
        pytest.param(KCRSwinTransformer, dict(SWIN, out_indices=[0, 1], use_abs_pos_embed=True),
                     2, 4, id='swin-maps')]


def subnet(cls, kwargs, kinds=('mlp_channels', ), target='80%'):
    """A random subnet whose norms and weights are not those of initialisation."""
    torch.manual_seed(0)
    model = cls(**kwargs)
    SearchSpace.of_dense(model, list(kinds))
    for parameter in model.parameters():
        parameter.data.normal_(0.1, 0.3)
    model, _ = random_subnet(model, target, SHAPE, divisor=1)
    model.eval()
    return model


def ranges(model):
    """How many blocks put contiguous channels back."""
    return sum(is_range(module.kept) for module in model.modules() if isinstance(module, Put))


@pytest.mark.parametrize('cls, kwargs, streams, sliced', NETS)
def test_the_same_outputs_with_more_ranges(cls, kwargs, streams, sliced):
    model = subnet(cls, kwargs)
    assert ranges(model) == 0
    other, x = copy.deepcopy(model), torch.randn(2, *SHAPE)
    assert permute_streams(other) == streams
    assert ranges(other) == sliced  # two of each stream
    with torch.no_grad():
        expected, found = model(x), other(x)
    assert len(expected) == len(kwargs.get('out_indices', [1]))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert permute_streams(other) == 0  # there is nothing left to gain


@pytest.mark.parametrize('others', [['heads'], ['head_channels', 'mlp_hidden'], ['qk_mask']])
@pytest.mark.parametrize('cls, kwargs', [(KCRVisionTransformer, VIT),
                                         (KCRSwinTransformer, dict(SWIN, out_indices=[0, 1]))])
def test_beside_other_kinds_of_site(cls, kwargs, others):
    torch.manual_seed(0)
    model = cls(**kwargs)
    space = SearchSpace.of_dense(model, ['mlp_channels', *others])
    for parameter in model.parameters():
        parameter.data.normal_(0.1, 0.3)

    def half(site):  # of every group
        each = site.total // site.rows
        count = each if site.kind == 'qk_mask' else each // 2
        return torch.cat([row * each + torch.randperm(each)[:count].sort().values
                          for row in range(site.rows)])

    space.slice_to(space.structure_for({name: half(site) for name, site in space.sites.items()}))
    model.eval()
    other, x = copy.deepcopy(model), torch.randn(2, *SHAPE)
    assert permute_streams(other) > 0
    with torch.no_grad():
        for a, b in zip(other(x), model(x)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('kinds', [['mlp_hidden'], ['embedding'], ['heads']])
def test_networks_without_selections_are_left_alone(kinds):
    model = subnet(KCRVisionTransformer, VIT, kinds)
    before = copy.deepcopy(model.state_dict())
    assert permute_streams(model) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_hosts_without_an_adapter_are_left_alone():
    """EfficientViT's streams have none, though its channels are selected."""
    arch = dict(widths=[8, 16, 32], depths=[1, 2, 1], head_dim=8)
    model = subnet(KCREfficientViT, dict(arch=arch))
    before = copy.deepcopy(model.state_dict())
    assert ranges(model) < sum(isinstance(module, Put) for module in model.modules())
    assert permute_streams(model) == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class WithAdapter(TransformerEncoderLayer):
    """A layer to fine-tune, of a user's own."""

    def __init__(self):
        super().__init__(32, 4, 64)
        self.adapter = nn.Linear(32, 32)

    def forward(self, x):
        x = super().forward(x)
        return x + self.adapter(x)


def add_adapters(model):
    model.layers[1] = WithAdapter()


def share_attention(model):
    model.layers[1].attn = model.layers[0].attn


def add_lora(model):
    model.layers[0].attn.qkv = LoRALinear(model.layers[0].attn.qkv, 1, 4, 0.)


def share_a_norm(model):
    model.layers[1].ln1 = model.layers[0].ln1


@pytest.mark.parametrize('change', [add_adapters, share_attention, add_lora, share_a_norm])
def test_streams_that_something_else_reads_are_left_alone(change):
    def host():
        model = VisionTransformer(**VIT)
        change(model)
        return model

    model, x = subnet(host, {}), torch.randn(2, *SHAPE)
    with torch.no_grad():
        expected = model(x)[0]
        assert permute_streams(model) == 0
        torch.testing.assert_close(model(x)[0], expected)


def test_hooks_on_the_host_see_its_own_order():
    model, x, seen = subnet(KCRVisionTransformer, VIT), torch.randn(2, *SHAPE), []
    model.register_forward_hook(lambda _, __, found: seen.append(found[0]))
    other = copy.deepcopy(model)
    assert permute_streams(other) == 1
    with torch.no_grad():
        model(x), other(x)
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4)


def test_a_convolution_behind_maps_in_other_runtimes(tmp_path):
    """One file for all runtimes. OpenVINO moves gathers of maps into convolutions, and wrongly."""
    class Segmentor(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = subnet(KCRVisionTransformer, dict(VIT, out_type='featmap'))
            self.head = nn.Conv2d(32, 5, 1)

        def forward(self, x):
            return self.head(self.backbone(x)[0])

    model = Segmentor().eval()
    assert permute_streams(copy.deepcopy(model)) == 1
    path = tmp_path / 'model.onnx'
    export_onnx(model, path, SHAPE, False)
    graph = onnx.load(path).graph
    sizes = {weight.name: list(weight.dims) for weight in graph.initializer}
    axes = [node.attribute[0].i for node in graph.node if node.op_type == 'Gather'
            and sizes.get(node.input[1]) == [32]]
    assert axes and 1 not in axes
    pytest.importorskip('openvino')
    errors = compare_onnx(TensorModel(model), path, [(1, *SHAPE)], runtime='openvino')
    assert max(errors.values()) < 1e-4


def test_a_given_form_keeps_the_order_of_the_channels():
    model = subnet(KCRVisionTransformer, VIT)
    assert ranges(prepare(model, 'openvino')) == 2
    assert ranges(prepare(model, 'openvino', form='gather')) == 0
    assert describe_selections(model, 'onnxruntime') == '4 sliced, 2 elements'


def test_the_exported_file_gathers_less(tmp_path):
    model = subnet(KCRSwinTransformer, dict(SWIN, out_indices=[1]))
    found = [export_onnx(model, tmp_path / f'{form}.onnx', SHAPE, False, form=form)
             for form in (None, 'gather')]
    gathers = [report.operators['Gather'] for report in found]
    # two for each of four blocks, against one for the features that leave
    assert gathers[1] - gathers[0] == 8 - 1
    assert max(max(report.errors.values()) for report in found) < 1e-4


def moved(selections, order):
    places = order.argsort()
    return [places[torch.tensor(one)].sort().values for one in selections]


@settings(deadline=None)
@given(st.permutations(range(12)),
       st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=6))
def test_an_order_for_intervals_is_found(hidden, ends):
    selections = [sorted(hidden[min(pair):max(pair)]) for pair in ends if pair[0] != pair[1]]
    order = range_order([torch.tensor(one) for one in selections], 12)
    assert sorted(order.tolist()) == list(range(12))
    # greedy: never fewer than two, and all if they are nested or apart
    kept = [is_range(one) for one in moved(selections, order)]
    assert sum(kept) >= min(2, len(selections))
    sets = [set(one) for one in selections]
    if all(a <= b or b <= a or not a & b for a in sets for b in sets):
        assert all(kept)


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=2, max_size=2))
def test_any_two_selections_become_ranges(sets):
    selections = [sorted(one) for one in sets]
    order = range_order([torch.tensor(one) for one in selections], 10)
    assert all(map(is_range, moved(selections, order)))


def test_three_blocks_that_no_order_can_serve():
    # every pair of the three overlaps, and each has what no other has
    selections = [[0, 1, 2], [1, 3, 4, 6], [2, 3, 5, 6]]
    order = range_order([torch.tensor(one) for one in selections], 8)
    assert sum(map(is_range, moved(selections, order))) == 2
