"""Axes of a site: entries of a unit, and layers and moments that are sliced or scaled."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmkcr.core import Axis, scale_axes, slice_axes

INDEX = torch.tensor([0, 2, 5])


def channels(layer):
    """Axes along what a layer gives; those that it does not have are passed over."""
    return [Axis(layer, name) for name in ('weight', 'bias', 'running_mean', 'running_var')]


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_entries_of_units(data):
    """An axis of ``repeats`` blocks of units of ``inner`` entries, against its layout in words."""
    repeats, inner, units = (data.draw(st.integers(1, 4)) for _ in range(3))
    kept = torch.tensor(sorted(data.draw(st.sets(st.integers(0, units - 1), min_size=1))))
    layout = [unit for _ in range(repeats) for unit in range(units) for _ in range(inner)]
    linear = nn.Linear(3, len(layout))
    found = Axis(linear, 'bias', repeats=repeats, inner=inner).entries(kept)
    assert found.tolist() == [place for place, unit in enumerate(layout) if unit in kept]


def test_units_that_share_an_entry():
    table = Axis(nn.Linear(2, 5), 'weight', 1, per=4)
    assert table.entries(torch.tensor([0, 1, 2, 7])).tolist() == [0, 1]
    assert table.entries(torch.tensor([5])).tolist() == [1]


@pytest.mark.parametrize('build, rest, sizes', [
    (lambda: nn.Linear(6, 6), (), ('in_features', 'out_features')),
    (lambda: nn.Conv1d(6, 8, 3, padding=1), (5, ), ('in_channels', 'out_channels')),
    (lambda: nn.Conv2d(6, 8, 3, padding=1), (5, 5), ('in_channels', 'out_channels'))])
def test_sliced_layers_compute_what_masked_ones_do(build, rest, sizes):
    layer, x = build(), torch.randn(4, 6, *rest)
    mask = torch.zeros(6).index_fill_(0, INDEX, 1.).view(6, *[1] * len(rest))
    expected = layer(x * mask)[:, INDEX]
    slice_axes([*channels(layer), Axis(layer, 'weight', 1)], INDEX)
    torch.testing.assert_close(layer(x[:, INDEX]), expected, rtol=1e-5, atol=1e-6)
    assert [getattr(layer, size) for size in sizes] == [3, 3]


def test_sliced_layers_of_single_channels():
    conv, norm, x = nn.Conv2d(6, 6, 3, groups=6), nn.BatchNorm2d(6), torch.randn(4, 6, 5, 5)
    norm(x)
    nn.init.normal_(norm.weight)
    for layer in (conv, norm.eval()):
        expected = layer(x)[:, INDEX]
        slice_axes(channels(layer), INDEX)
        torch.testing.assert_close(layer(x[:, INDEX]), expected)
    assert conv.groups == conv.in_channels == conv.out_channels == norm.num_features == 3
    layer_norm, x = nn.LayerNorm(6), torch.randn(4, 3)
    slice_axes(channels(layer_norm), INDEX)
    torch.testing.assert_close(layer_norm(x), nn.functional.layer_norm(x, (3, )))
    slice_axes(channels(nn.GELU()), INDEX)


@pytest.mark.parametrize('kept', [torch.arange(6), INDEX])
def test_slicing_copies(kept):
    layer, values = nn.LayerNorm(6), torch.arange(6.)
    layer.bias = nn.Parameter(values)
    slice_axes(channels(layer), kept)
    assert layer.bias.data_ptr() != values.data_ptr() and layer.bias.tolist() == kept.tolist()


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
    slice_axes([*channels(sliced), Axis(sliced, 'weight', 1)], INDEX, opt)
    assert opt.param_groups[0]['params'] == list(sliced.parameters())
    step(sliced, x[:, INDEX], torch.arange(3))
    torch.testing.assert_close(sliced.weight, dense.weight[INDEX][:, INDEX])
    torch.testing.assert_close(sliced.bias, dense.bias[INDEX])


@pytest.mark.parametrize('make', [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True), lambda p: torch.optim.RMSprop(p, lr=0.1)])
def test_scaled_state_is_that_of_the_scaled_gradient(make):
    """After scaling, the state is what gradients of the product would have left."""
    torch.manual_seed(0)
    scale, x = torch.tensor([0.5, 2., 3.]), torch.randn(5, 4)
    plain, folded = nn.Linear(4, 3), nn.Linear(4, 3)
    folded.load_state_dict(plain.state_dict())
    scale_axes([Axis(folded, 'weight', 0, True), Axis(folded, 'bias', 0, True)], scale)
    torch.testing.assert_close(folded(x), plain(x) * scale)
    optimizers = [make(net.parameters()) for net in (plain, folded)]
    for net, factor, optimizer in zip((plain, folded), (scale, 1.), optimizers):
        (net(x) * factor).square().sum().backward()
        state = {name: p.detach().clone() for name, p in net.named_parameters()}
        optimizer.step()
        net.load_state_dict(state)
    scale_axes([Axis(plain, 'weight', 0, True), Axis(plain, 'bias', 0, True)], scale,
               optimizers[0])
    for one, two in zip(plain.parameters(), folded.parameters()):
        torch.testing.assert_close(one.grad, two.grad)
        for key, value in optimizers[0].state[one].items():
            torch.testing.assert_close(value, optimizers[1].state[two][key], msg=key)


def test_what_does_not_fold_is_left_alone():
    linear = nn.Linear(2, 2)
    weight = linear.weight.detach().clone()
    scale_axes([Axis(linear, 'weight', 0)], torch.tensor([2., 3.]))
    assert torch.equal(linear.weight, weight)
