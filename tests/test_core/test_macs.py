"""MACs: closed forms per operator, published models, and the differentiable count."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models import MobileViT, SwinTransformer, VisionTransformer
from torch import nn

from lab.kind_coverage import FAMILIES, randomise
from mmkcr.apis import count_macs, macs_report
from mmkcr.core import MacsModel, count_forward_macs, count_params
from mmkcr.methods.named import KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models import Searchable
from mmkcr.models.slicing import apply_decisions

VIT = dict(arch=dict(embed_dims=24, num_layers=3, num_heads=2, feedforward_channels=40),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=12, depths=[1, 2, 1], num_heads=[2, 2, 4]), img_size=32,
            window_size=2, patch_size=4, out_indices=(2, ))

small = st.integers(1, 6)


def macs_of(module, *inputs):
    return count_forward_macs(module, lambda: module(*inputs)).total


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


# ---- operators --------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolution(data):
    """Depthwise ones have as many groups as channels."""
    groups, kernel, stride = (data.draw(st.integers(1, 3)) for _ in range(3))
    inputs, outputs = (groups * data.draw(st.integers(1, 4)) for _ in range(2))
    height, width = (data.draw(st.integers(kernel, 9)) for _ in range(2))
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups)
    x = torch.zeros(2, inputs, height, width)
    positions = 2 * math.prod(conv(x).shape[2:])
    assert macs_of(conv, x) == positions * outputs * (inputs // groups) * kernel**2


@pytest.mark.parametrize('device', ['cpu', 'meta'])
@pytest.mark.parametrize('b, n, k, m', [(2, 3, 5, 7), (1, 3, 1, 7), (3, 1, 5, 1)])
def test_products(b, n, k, m, device):
    """Sizes that are no multiples of each other: every factor shows. Biases and sums have none."""
    def zeros(*shape):
        return torch.zeros(*shape, device=device)

    vector, matrix, stack, other = zeros(k), zeros(n, k), zeros(b, n, k), zeros(b, k, m)
    for expected, functions, *inputs in (
            (k, (torch.dot, torch.vdot, torch.matmul, torch.inner), vector, vector),
            (n * k, (torch.mv, torch.matmul, F.linear), matrix, vector),
            (n * k, (torch.matmul, ), vector, matrix.t()),
            (n * k, (torch.addmv, ), zeros(n), matrix, vector),
            (b * n * k, (torch.matmul, ), stack, vector),
            (b * n * k * m, (torch.bmm, torch.matmul, torch.Tensor.__matmul__), stack, other),
            (b * n * k * m, (torch.baddbmm, ), zeros(b, n, m), stack, other),
            (b * n**2 * k, (torch.addbmm, ), zeros(n, n), stack, stack.mT),
            *((b * n * k * m, (nn.Linear(k, m, bias, device), ), stack) for bias in (True, False)),
            # a linear layer on the outer product, whose entries are no sums
            *((b * n * k * m * 11, (nn.Bilinear(k, 11, m, bias, device), ), stack, zeros(b, n, 11))
              for bias in (True, False)),
            # every pair of an input entry and a kernel entry
            (25 * b * k * m * 9, (nn.ConvTranspose2d(k, m, 3, 2, device=device), ),
             zeros(b, k, 5, 5)),
            # Q K^T and the product with V; the softmax has none
            (2 * b * n * k * m * 8, (F.scaled_dot_product_attention, ), zeros(b, n, k, 8),
             *[zeros(b, n, m, 8)] * 2)):
        for function in functions:
            module = function if isinstance(function, nn.Module) else Call(function)
            assert macs_of(module, *inputs) == expected, function


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)]), small, small, small,
       st.integers(1, 3), st.booleans(), st.sampled_from(['cpu', 'meta']))
def test_recurrent_layers(kind, steps, inputs, hidden, layers, both, device):
    """At every step the matrices of the inputs and of the state, by gate, layer and direction."""
    build, gates = kind
    model = build(inputs, hidden, layers, bidirectional=both, device=device)
    sides = 2 if both else 1
    widths = [inputs] + [sides * hidden] * (layers - 1)
    expected = steps * 2 * sum(sides * gates * hidden * (width + hidden) for width in widths)
    x = torch.zeros(steps, 2, inputs, device=device)
    assert macs_of(model, x) == expected
    report = count_forward_macs(nn.Sequential(model), lambda: model(x))
    assert report.own == report.modules == {'0': expected}


def test_recurrent_layers_of_gpus():
    """Their one operator for all layers, without one: only its shapes are inferred."""
    model = nn.LSTM(3, 8, 2, proj_size=5, bidirectional=True, device='meta')
    inputs, state, cell = (torch.zeros(*shape, device='meta') for shape in (
        (7, 2, 3), (4, 2, 5), (4, 2, 8)))
    weights = [weight for layer in model.all_weights for weight in layer]

    def run(*inputs):
        return torch.ops.aten._cudnn_rnn(*inputs, weights, 5, None, state, cell, 2, 8, 5, 2, False,
                                         0., False, True, [], None)

    matrices = sum(2 * (32 * width + 32 * 5 + 5 * 8) for width in (3, 10))
    assert macs_of(Call(run), inputs) == 14 * matrices
    assert macs_of(model, inputs) == 14 * matrices  # as its own products


INFERRED = {
    'linear': (F.linear, (3, 4, 5), (7, 5), (7, )),
    'linear of one row': (F.linear, (5, ), (7, 5), (7, )),
    'sum': (torch.addmm, (4, 1), (4, 5), (5, 7)),
    'stack': (torch.baddbmm, (1, 7), (2, 4, 5), (2, 5, 7)),
    'convolution': (F.conv2d, (2, 3, 9, 8), (6, 3, 3, 3), (6, )),
    'bilinear': (partial(F.interpolate, size=(5, 7), mode='bilinear'), (2, 3, 4, 6)),
    'bicubic': (partial(F.interpolate, scale_factor=2.5, mode='bicubic'), (2, 3, 4, 6)),
    'sampling': (partial(F.grid_sample, align_corners=False), (2, 3, 4, 6), (2, 5, 7, 2)),
    'sampling in space': (partial(F.grid_sample, align_corners=False), (2, 3, 4, 6, 5),
                          (2, 5, 7, 9, 3)),
}


@pytest.mark.parametrize('name', INFERRED)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_what_is_not_computed_has_its_shape(name, dtype):
    function, *shapes = INFERRED[name]
    inputs = [torch.ones(shape, dtype=dtype) for shape in shapes]
    outputs = []
    count_forward_macs(nn.Identity(), lambda: outputs.append(function(*inputs)))
    (found, ), expected = outputs, function(*inputs)
    assert (found.shape, found.dtype, found.stride()) == (
        expected.shape, expected.dtype, expected.stride())
    assert found.device == expected.device and not found.any()


@pytest.mark.parametrize('function, shapes', [
    (F.linear, [(2, 5), (7, 5), (6, )]), (F.linear, [(2, 4), (7, 5), (7, )]),
    (torch.baddbmm, [(3, 4, 7), (2, 4, 5), (2, 5, 7)])])
def test_shapes_that_do_not_fit_are_refused(function, shapes):
    inputs = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(RuntimeError, match='must match|cannot be multiplied|dim'):
        macs_of(Call(function), *inputs)


def test_what_is_no_product_has_no_macs():
    """As the docstring of the count says."""
    x = torch.ones(4, 3)
    for function in (torch.mul, torch.cdist, torch.linalg.vecdot, lambda a, b: torch.outer(
            a[0], b[0]), lambda a, b: torch.sparse.mm(a.to_sparse(), b.t())):
        assert macs_of(Call(function), x, x) == 0


def test_attention_of_torch_is_counted_without_its_fast_path():
    tokens = torch.zeros(2, 10, 16)
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    found = macs_of(Call(lambda x: attention(x, x, x, need_weights=False)[0]), tokens)
    assert found == macs_of(attention, tokens, tokens, tokens) == 2 * (4 * 16 + 2 * 10) * 10 * 16
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    assert macs_of(layer, tokens) == found + 2 * 2 * 10 * 16 * 24
    assert torch.backends.mha.get_fastpath_enabled()


def test_mode_gradients_and_modules_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].eval()
    report = count_forward_macs(model, lambda: model(torch.ones(1, 4)))
    assert [m.training for m in model] == [True, False, True] and torch.is_grad_enabled()
    assert report.total == 24 and report.modules == {'0': 16, '2': 8}
    assert report.operators == {'aten.addmm': 24}
    assert count_params(model) == 20 + 8 + 10
    assert (model[1].running_mean == 0).all()


# ---- published models -------------------------------------------------------------------------


@pytest.mark.parametrize('build, size, published', [
    (lambda: VisionTransformer('deit-small'), 224, 4.6e9),
    (lambda: VisionTransformer('base'), 224, 17.6e9),
    (lambda: SwinTransformer('tiny'), 224, 4.5e9),
    (lambda: MobileViT('small'), 256, 2.0e9),
], ids=['vit-s', 'vit-b', 'swin-t', 'mobilevit-s'])
def test_published_models(build, size, published):
    model = build().to('meta')  # shapes are all that a count needs
    found = count_macs(model, (3, size, size))
    assert found == pytest.approx(published, rel=0.015)


def test_vit_closed_form():
    """12 blocks of 12 N D^2 + 2 N^2 D, and the patch embedding."""
    n, d = 197, 384
    found = count_macs(KCRVisionTransformer('deit-small').to('meta'), (3, 224, 224))
    assert found == 12 * (12 * n * d**2 + 2 * n**2 * d) + 196 * d * 3 * 16**2


@pytest.mark.parametrize('shape', [(3, 32), (3, 32, 0), (3, 32, 32, 32)])
def test_wrong_shape_is_refused(shape):
    with pytest.raises(ValueError, match=r'an input shape \(C, H, W\), found'):
        macs_report(nn.Linear(2, 2), shape)


# ---- MACs as a function of the gates ----------------------------------------------------------

BI_MASK = dict(type='mmkcr.BiMaskGate')
ANY_SIZE = dict(type='mmkcr.GumbelChannelGate', min_size=1)


def searchable(host, kinds, **arguments):
    config = dict(arguments, type=f'mmpretrain.{host}')
    return lambda **state: Searchable(config, sites=kinds, **state)


#: What builds supernets and subnets, and a size: odd for ViT, padded for Swin.
CASES = {
    'kcr-swin': (partial(KCRSwinTransformer, **SWIN, pad_small_map=True), (29, 37)),
    'vit, three kinds': (searchable(
        'VisionTransformer', ['embedding', 'heads', 'mlp_hidden'], **VIT), (32, 32)),
    'vit, channels and hidden': (searchable(
        'VisionTransformer', ['mlp_channels', 'mlp_hidden', 'heads'], **VIT), (32, 40)),
    'swin, three kinds': (searchable(
        'SwinTransformer', ['embedding', 'heads', 'mlp_hidden'], **SWIN, pad_small_map=True),
        (29, 37)),
}
every_case = pytest.mark.parametrize('name', CASES)


@pytest.fixture(scope='module')
def supernets():
    """Supernet, (C, H, W) and MACs model by case."""
    found = {}
    for name, (build, size) in CASES.items():
        model, image = build(gates=ANY_SIZE), torch.zeros(1, 3, *size)
        macs = MacsModel(model, model, model.search_space.gated_sites(), partial(model, image))
        found[name] = model, (3, *size), macs
    return found


def draw_sizes(data, model, below=0):
    return {site: data.draw(st.integers(1, total - below))
            for site, total in model.search_space.totals().items()}


@every_case
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_equals_the_count_of_the_built_subnet(supernets, name, data):
    model, shape, macs = supernets[name]
    sizes = draw_sizes(data, model)
    structure = model.search_space.structure_for(
        {site: torch.arange(size) for site, size in sizes.items()})
    assert type(macs(sizes)) is int
    assert macs(sizes) == count_macs(CASES[name][0](structure=structure), shape)
    assert macs(model.search_space.totals()) == macs.dense


@every_case
def test_full_sizes_are_the_dense_model(supernets, name):
    _, shape, macs = supernets[name]
    assert macs.dense == count_macs(CASES[name][0](), shape)


@every_case
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_gradient_is_the_finite_difference(supernets, name, data):
    """The count is linear in each size where no site meets itself, and a difference exact."""
    model, _, macs = supernets[name]
    sizes = draw_sizes(data, model, 1)
    points = {site: torch.tensor(float(size), dtype=torch.float64, requires_grad=True)
              for site, size in sizes.items()}
    expected = macs(points)
    assert float(expected) == pytest.approx(macs(sizes), rel=1e-14)
    gradients = torch.autograd.grad(expected, list(points.values()))
    for site, gradient in zip(sizes, gradients):
        difference = macs({**sizes, site: sizes[site] + 1}) - macs(sizes)
        assert float(gradient) == pytest.approx(difference, rel=1e-12) and difference > 0


def test_closed_form_of_channels_times_hidden_units(supernets):
    """Both kinds lie along both layers of an MLP: ``2 N c m``."""
    model, shape, macs = supernets['vit, channels and hidden']
    full, tokens = model.search_space.totals(), 4 * 5 + 1
    for channels, hidden in ((1, 1), (5, 17), (24, 40)):
        sizes = {**full, 'layers.1.ffn.mlp_channels': channels, 'layers.1.ffn.mlp_hidden': hidden}
        assert macs.dense - macs(sizes) == 2 * tokens * (24 * 40 - channels * hidden)
        site = macs.site_macs('layers.1.ffn.mlp_channels', sizes)
        assert site == macs.site_macs('layers.1.ffn.mlp_hidden', sizes) == \
            2 * tokens * channels * hidden


def test_a_supernet_that_was_sliced_keeps_the_formula():
    """Before and after the slicing, at every size that is still possible."""
    build = searchable('VisionTransformer', ['embedding', 'head_channels', 'mlp_hidden'], **VIT)
    model, image = build(gates=BI_MASK), torch.zeros(1, 3, 32, 32)
    space = model.search_space

    def macs_model():
        return MacsModel(model, model, space.gated_sites(), lambda: model(image))

    before = macs_model()
    for gate in space.gates().values():
        alive = gate.alive.clone()
        alive[-1, -1] = alive[0, -1] = False
        gate.restrict(alive)
    assert apply_decisions(space.sites)
    after = macs_model()
    assert after.dense == before.dense
    for option in range(3):
        sizes = {name: gate.options()[option][0] for name, gate in space.gates().items()}
        assert after(sizes) == before(sizes)


def test_missing_and_unreached_sites_are_refused():
    dense = KCRVisionTransformer(**VIT)
    with pytest.raises(ValueError, match='a backbone with sites, found none in `KCRVision'):
        MacsModel(dense, dense, dense.search_space.gated_sites(), lambda: None)
    model = KCRVisionTransformer(**VIT, gates=ANY_SIZE)
    with pytest.raises(ValueError, match='site `layers.0.ffn.mlp_channels` was not'):
        MacsModel(model, model, model.search_space.gated_sites(), lambda: None)


def test_counting_leaves_what_modules_keep():
    """EVA-02 keeps tables of rotary positions, which are of zeros where products are."""
    model = randomise(FAMILIES['EVA-02'].build())
    model.eval()
    small, large = torch.randn(1, 3, 64, 64), torch.randn(1, 3, 96, 96)
    with torch.no_grad():
        expected = [model(x)[0] for x in (large, small)]
        state = {name: value.clone() for name, value in model.state_dict().items()}
        count_macs(model, (3, 96, 96))
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        for x, out in zip((large, small), expected):
            torch.testing.assert_close(model(x)[0], out, rtol=0, atol=0)
    assert not model.training and all(value.requires_grad for value in model.parameters())
