"""A sliced layer computes what the masked layer computes, moments included."""

import copy

import pytest
import torch
from torch import nn

from mmkcr.core import Axis, slice_axes
from mmkcr.core.slicing import take_entries

INDEX = torch.tensor([0, 2, 5])


def both_sides(layer):
    return [Axis(layer, 'weight'), Axis(layer, 'bias'), Axis(layer, 'weight', 1)]


def test_take_copies():
    tensor = torch.arange(6.)
    assert take_entries(tensor, {0: None}).data_ptr() != tensor.data_ptr()
    assert take_entries(tensor, {0: INDEX}).tolist() == [0, 2, 5]


def test_linear_equals_masked():
    torch.manual_seed(0)
    linear, x = nn.Linear(6, 6), torch.randn(4, 6)
    mask = torch.zeros(6).index_fill_(0, INDEX, 1.)
    expected = linear(x * mask)[:, INDEX]
    slice_axes(both_sides(linear), INDEX)
    torch.testing.assert_close(linear(x[:, INDEX]), expected)
    assert (linear.in_features, linear.out_features) == (3, 3)


@pytest.mark.parametrize('cls, dims', [(nn.Conv1d, 1), (nn.Conv2d, 2)])
def test_conv_equals_masked(cls, dims):
    torch.manual_seed(0)
    conv, x = cls(6, 8, 3, padding=1), torch.randn(2, 6, *[5] * dims)
    mask = torch.zeros(6).index_fill_(0, INDEX, 1.).view(1, 6, *[1] * dims)
    expected = conv(x * mask)[:, INDEX]
    slice_axes(both_sides(conv), INDEX)
    torch.testing.assert_close(conv(x[:, INDEX]), expected, rtol=1e-5, atol=1e-6)
    assert (conv.in_channels, conv.out_channels) == (3, 3)


def test_depthwise_conv_equals_masked():
    conv, x = nn.Conv2d(6, 6, 3, groups=6), torch.randn(2, 6, 5, 5)
    expected = conv(x)[:, INDEX]
    slice_axes([Axis(conv, 'weight'), Axis(conv, 'bias')], INDEX)
    torch.testing.assert_close(conv(x[:, INDEX]), expected)
    assert conv.groups == conv.in_channels == conv.out_channels == 3


def test_norms():
    batch_norm, x = nn.BatchNorm2d(6), torch.randn(4, 6, 3, 3)
    batch_norm(x)
    nn.init.normal_(batch_norm.weight)
    batch_norm.eval()
    expected = batch_norm(x)[:, INDEX]
    names = ('weight', 'bias', 'running_mean', 'running_var')
    slice_axes([Axis(batch_norm, name) for name in names], INDEX)
    torch.testing.assert_close(batch_norm(x[:, INDEX]), expected)
    layer_norm = nn.LayerNorm(6)
    slice_axes([Axis(layer_norm, name) for name in names], INDEX)
    torch.testing.assert_close(layer_norm(x[0, INDEX].T),
                               nn.functional.layer_norm(x[0, INDEX].T, (3, )))


@pytest.mark.parametrize('optimizer', [
    lambda params: torch.optim.AdamW(params, lr=0.1, weight_decay=0.1, amsgrad=True),
    lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
])
def test_moments_belong_to_the_kept_channels(optimizer):
    """A step after slicing is the masked step on the kept channels."""
    torch.manual_seed(0)
    dense, x = nn.Linear(6, 6), torch.randn(4, 6)
    x[:, [1, 3, 4]] = 0  # what is dropped takes no part in the kept outputs
    opt = optimizer(dense.parameters())

    def step(layer, inputs, keep):
        opt.zero_grad()
        layer(inputs)[:, keep].square().sum().backward()
        opt.step()

    for _ in range(3):
        step(dense, x, INDEX)
    sliced = nn.Linear(6, 6)
    sliced.load_state_dict(dense.state_dict())
    state = copy.deepcopy(opt.state_dict())  # the next step writes into the moments
    step(dense, x, INDEX)

    opt = optimizer(sliced.parameters())
    opt.load_state_dict(state)
    slice_axes(both_sides(sliced), INDEX, opt)
    assert opt.param_groups[0]['params'] == list(sliced.parameters())
    step(sliced, x[:, INDEX], torch.arange(3))
    torch.testing.assert_close(sliced.weight, dense.weight[INDEX][:, INDEX])
    torch.testing.assert_close(sliced.bias, dense.bias[INDEX])
