"""Members of a site: which entries a unit owns, slicing, scaling, sizes of layers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmkcr.core import Member, scale_members, slice_members, sync_sizes


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_entries_of_units(data):
    """An axis of ``repeats`` blocks of units of ``inner`` entries, against its layout in words."""
    repeats, inner, units = (data.draw(st.integers(1, 4)) for _ in range(3))
    kept = torch.tensor(sorted(data.draw(st.sets(st.integers(0, units - 1), min_size=1))))
    layout = [unit for _ in range(repeats) for unit in range(units) for _ in range(inner)]
    linear = nn.Linear(3, len(layout))
    found = Member(linear, 'bias', repeats=repeats, inner=inner).entries(kept)
    assert found.tolist() == [place for place, unit in enumerate(layout) if unit in kept]


def test_units_that_share_an_entry():
    table = Member(nn.Linear(2, 5), 'weight', 1, per=4)
    assert table.entries(torch.tensor([0, 1, 2, 7])).tolist() == [0, 1]
    assert table.entries(torch.tensor([5])).tolist() == [1]


def test_slicing_keeps_sizes_and_moments_together():
    first, last = nn.Linear(4, 6), nn.Linear(6, 2)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()])
    last(first(torch.randn(3, 4))).sum().backward()
    optimizer.step()
    before = optimizer.state[first.weight]['exp_avg'].clone()
    members = [Member(first, 'weight'), Member(first, 'bias'), Member(last, 'weight', 1),
               Member(last, 'absent'), Member(first, 'in_features_scale')]
    slice_members(members, torch.tensor([1, 4]), optimizer)
    assert (first.out_features, last.in_features) == (2, 2)
    assert torch.equal(optimizer.state[first.weight]['exp_avg'], before[[1, 4]])
    held = [p for group in optimizer.param_groups for p in group['params']]
    assert [id(p) for p in held] == [id(p) for p in (*first.parameters(), *last.parameters())]


@pytest.mark.parametrize('make', [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True), lambda p: torch.optim.RMSprop(p, lr=0.1)])
def test_scaled_state_is_that_of_the_scaled_gradient(make):
    """After scaling, the state is what gradients of the product would have left."""
    torch.manual_seed(0)
    scale, x = torch.tensor([0.5, 2., 3.]), torch.randn(5, 4)
    plain, folded = nn.Linear(4, 3), nn.Linear(4, 3)
    folded.load_state_dict(plain.state_dict())
    scale_members([Member(folded, 'weight', 0, True), Member(folded, 'bias', 0, True)], scale)
    torch.testing.assert_close(folded(x), plain(x) * scale)
    optimizers = [make(net.parameters()) for net in (plain, folded)]
    for net, factor, optimizer in zip((plain, folded), (scale, 1.), optimizers):
        (net(x) * factor).square().sum().backward()
        state = {name: p.detach().clone() for name, p in net.named_parameters()}
        optimizer.step()
        net.load_state_dict(state)
    scale_members([Member(plain, 'weight', 0, True), Member(plain, 'bias', 0, True)], scale,
                  optimizers[0])
    for one, two in zip(plain.parameters(), folded.parameters()):
        torch.testing.assert_close(one.grad, two.grad)
        for key, value in optimizers[0].state[one].items():
            torch.testing.assert_close(value, optimizers[1].state[two][key], msg=key)


def test_what_does_not_fold_is_left_alone():
    linear = nn.Linear(2, 2)
    weight = linear.weight.detach().clone()
    scale_members([Member(linear, 'weight', 0)], torch.tensor([2., 3.]))
    assert torch.equal(linear.weight, weight)


def test_sizes_of_layers():
    conv, depthwise = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 6, 3, groups=6)
    norm, batch_norm = nn.LayerNorm(6), nn.BatchNorm2d(6)
    for layer in (conv, depthwise, norm, batch_norm):
        parameters = ['weight', 'bias']
        if layer is batch_norm:
            parameters += ['running_mean', 'running_var']
        slice_members([Member(layer, name) for name in parameters], torch.arange(3))
    assert (conv.out_channels, conv.in_channels) == (3, 4)
    assert (depthwise.groups, depthwise.in_channels) == (3, 3)
    assert norm.normalized_shape == (3, ) and batch_norm.num_features == 3
    norm(batch_norm(depthwise(conv(torch.randn(2, 4, 9, 9)))).permute(0, 2, 3, 1))
    sync_sizes(nn.GELU())
