"""MACs: closed forms per operator, published models, and the differentiable count."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models import MobileViT, SwinTransformer, VisionTransformer
from torch import nn

from mmkcr.apis import count_macs, macs_report
from mmkcr.core import MacsModel, count_forward_macs, count_params
from mmkcr.models import KCRSwinTransformer, KCRVisionTransformer

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=1)
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


@settings(max_examples=30, deadline=None)
@given(small, small, small, small, st.booleans())
def test_linear(batch, tokens, inputs, outputs, bias):
    found = macs_of(nn.Linear(inputs, outputs, bias), torch.zeros(batch, tokens, inputs))
    assert found == batch * tokens * inputs * outputs


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_convolution(data):
    groups, kernel, stride = (data.draw(st.integers(1, 3)) for _ in range(3))
    inputs, outputs = (groups * data.draw(st.integers(1, 4)) for _ in range(2))
    height, width = (data.draw(st.integers(kernel, 9)) for _ in range(2))
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups)
    x = torch.zeros(2, inputs, height, width)
    positions = 2 * math.prod(conv(x).shape[2:])
    assert macs_of(conv, x) == positions * outputs * (inputs // groups) * kernel**2


@settings(max_examples=20, deadline=None)
@given(small, st.integers(1, 3), st.integers(3, 8))
def test_depthwise_convolution(channels, stride, size):
    conv = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels)
    x = torch.zeros(1, channels, size, size)
    assert macs_of(conv, x) == math.prod(conv(x).shape) * 9


@settings(max_examples=20, deadline=None)
@given(small, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_transposed_convolution(size, inputs, outputs, kernel, stride):
    """One product for every pair of an input entry and a kernel entry."""
    conv = nn.ConvTranspose2d(inputs, outputs, kernel, stride)
    found = macs_of(conv, torch.zeros(1, inputs, size, size))
    assert found == size**2 * inputs * outputs * kernel**2


@settings(max_examples=30, deadline=None)
@given(small, small, small, small)
def test_batched_products(batch, rows, inner, columns):
    left, right = torch.zeros(batch, rows, inner), torch.zeros(batch, inner, columns)
    expected = batch * rows * inner * columns
    for product in (torch.bmm, torch.matmul,
                    torch.Tensor.__matmul__):
        assert macs_of(Call(product), left, right) == expected
    bias = torch.zeros(batch, rows, columns)
    assert macs_of(Call(lambda a, b: torch.baddbmm(bias, a, b)), left, right) == expected


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9),
       st.sampled_from([4, 8, 16]))
def test_fused_attention(batch, heads, queries, keys, width):
    """Q K^T and the product with V; the softmax has none."""
    q, k = torch.zeros(batch, heads, queries, width), torch.zeros(batch, heads, keys, width)
    found = macs_of(Call(F.scaled_dot_product_attention), q, k, k)
    assert found == 2 * batch * heads * queries * keys * width


def test_attention_is_counted_the_same_fused_or_not():
    def by_hand(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v

    q, k, v = torch.randn(3, 1, 2, 10, 16)
    assert macs_of(Call(by_hand), q, k, v) == macs_of(
        Call(F.scaled_dot_product_attention), q, k, v) == 2 * 2 * 10 * 10 * 16


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


@pytest.fixture(scope='module')
def supernets():
    """Supernet, arguments and MACs model by class; an odd image for ViT and a padded one."""
    found = {}
    for cls, kwargs, size in ((KCRVisionTransformer, VIT, (40, 24)),
                              (KCRSwinTransformer, dict(SWIN, pad_small_map=True), (29, 37))):
        model = cls(**kwargs, gates=GATES)
        image = torch.zeros(1, 3, *size)
        macs = MacsModel(model, model, lambda model=model, image=image: model(image))
        found[cls] = model, kwargs, (3, *size), macs
    return found


@pytest.mark.parametrize('cls', [KCRVisionTransformer, KCRSwinTransformer])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_equals_the_count_of_the_built_subnet(supernets, cls, data):
    model, kwargs, shape, macs = supernets[cls]
    sizes = {site: data.draw(st.integers(1, width)) for site, width in model.sites().items()}
    structure = model.structure_for({site: torch.arange(size) for site, size in sizes.items()})
    subnet = cls(**kwargs, structure=structure)
    assert type(macs(sizes)) is int
    assert macs(sizes) == count_macs(subnet, shape)


@pytest.mark.parametrize('cls', [KCRVisionTransformer, KCRSwinTransformer])
def test_full_sizes_are_the_dense_model(supernets, cls):
    model, kwargs, shape, macs = supernets[cls]
    assert macs(model.sites()) == macs.dense == count_macs(cls(**kwargs), shape)


@pytest.mark.parametrize('cls', [KCRVisionTransformer, KCRSwinTransformer])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_gradient_is_the_finite_difference(supernets, cls, data):
    """The count is linear in each size, so a difference of one unit is exact."""
    model, _, _, macs = supernets[cls]
    sizes = {site: data.draw(st.integers(1, width - 1)) for site, width in model.sites().items()}
    points = {site: torch.tensor(float(size), dtype=torch.float64, requires_grad=True)
              for site, size in sizes.items()}
    expected = macs(points)
    assert float(expected) == macs(sizes)
    gradients = torch.autograd.grad(expected, list(points.values()))
    for site, gradient in zip(sizes, gradients):
        assert float(gradient) == macs({**sizes, site: sizes[site] + 1}) - macs(sizes) > 0


def test_missing_and_unreached_sites_are_refused():
    dense = KCRVisionTransformer(**VIT)
    with pytest.raises(ValueError, match='a backbone with gates, found no searchable layer'):
        MacsModel(dense, dense, lambda: None)
    model = KCRVisionTransformer(**VIT, gates=GATES)
    with pytest.raises(ValueError, match='site `layers.0.ffn` was not'):
        MacsModel(model, model, lambda: None)
