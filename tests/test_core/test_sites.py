"""Sites: masks as hooks, holders, and what the base class does for every kind."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mmkcr.core import Axis, MaskPoint, Site, SiteHolder
from mmkcr.core.sites import holders
from mmkcr.methods.ofb.bimask import BiMaskGate
from mmkcr.methods.search.gumbel import GumbelChannelGate


def gate_of(mask):
    """A gate whose hard mask is given."""
    gate = GumbelChannelGate(len(mask), min_size=1)
    gate.alpha.data.copy_(2. * torch.tensor(mask) - 1)
    return gate.eval()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mask_against_its_layout_in_words(data):
    """Along any dimension: ``repeats`` blocks of units of ``inner`` entries."""
    repeats, inner, units = (data.draw(st.integers(1, 3)) for _ in range(3))
    mask = [1.] + data.draw(st.lists(st.sampled_from([0., 1.]), min_size=units, max_size=units))
    layout = [value for _ in range(repeats) for value in mask for _ in range(inner)]
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    shape[dim] = len(layout)
    x = torch.randn(shape)
    point, gate = MaskPoint(nn.Identity(), 'output', dim, repeats, inner), gate_of(mask)
    found = point.mask(gate, x)
    expected = (x.movedim(dim, -1) * torch.tensor(layout)).movedim(-1, dim)
    assert torch.equal(found, expected)
    for dtype in (torch.float64, torch.bfloat16):
        assert point.mask(gate, x.to(dtype)).dtype == dtype


class TwoOutputs(nn.Linear):
    """Gives a tuple, as an attention layer may."""

    def forward(self, x, factor=1.):
        return super().forward(x) * factor, 'weights'


def test_points_mask_first_input_or_output():
    layer, gate, x = TwoOutputs(3, 3), gate_of([1., 0., 1.]), torch.randn(4, 3)
    handle = MaskPoint(layer, 'input').attach(gate)
    expected = nn.functional.linear(x * torch.tensor([1., 0., 1.]), layer.weight, layer.bias)
    torch.testing.assert_close(layer(x, 2.)[0], 2 * expected)
    handle.remove()
    handle = MaskPoint(layer, 'output').attach(gate)
    plain = nn.functional.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x)[0], plain * torch.tensor([1., 0., 1.]))
    assert layer(x)[1] == 'weights'
    handle.remove()
    assert torch.equal(layer(x)[0], plain)


class Outputs(Site):
    """Units are the outputs of a linear layer that another one reads."""

    kind = 'outputs'

    def axes(self):
        first, second = self.host
        return [Axis(first, 'weight', 0, True), Axis(first, 'bias', 0, True),
                Axis(second, 'weight', 1)]

    def mask_points(self):
        return [MaskPoint(self.host[0], 'output')]


def site():
    torch.manual_seed(0)
    return Outputs(nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2)).eval(), '0', 6, groups=2)


KEPT, X = torch.tensor([0, 2, 3, 5]), torch.randn(5, 3)
MASK = [1., 0., 1., 1., 0., 1.]


def test_the_law_of_a_site():
    """Masked equals sliced, by a gate or by a structure; the dense network comes back."""
    one, two = site(), site()
    dense = one.host(X)
    one.attach(gate_of(MASK))
    assert one.gate.site == one.name == '0.outputs' and one.kept is None
    assert list(holders(one.host)) == ['0.outputs'] and one.holder is holders(
        one.host)['0.outputs']
    masked = one.host(X)
    assert not torch.allclose(masked, dense)
    one.detach()
    assert torch.equal(one.host(X), dense) and one.holder is None
    one.attach(gate_of(MASK))
    for each in (one, two):
        each.slice_to(KEPT)
        torch.testing.assert_close(each.host(X), masked)
        assert each.gate is None and torch.equal(each.kept, KEPT)
        assert not [key for key in each.host.state_dict() if 'kept' in key]
        assert not holders(each.host)


def test_a_gate_that_is_trained_through_a_mask():
    """d loss / d alpha is that of the written-out product."""
    masked = site()
    gate = GumbelChannelGate(6, min_size=1)
    gate.resample(torch.Generator().manual_seed(1))
    masked.attach(gate)
    masked.host(X).square().sum().backward()
    alpha = gate.alpha.detach().clone().requires_grad_()
    first, second = masked.host
    soft = torch.sigmoid((alpha + gate.noise) / gate.temperature)
    hidden = nn.functional.linear(X, first.weight, first.bias) * soft
    nn.functional.linear(hidden, second.weight, second.bias).square().sum().backward()
    torch.testing.assert_close(gate.alpha.grad, alpha.grad)
    assert gate.alpha.grad.all()


def test_ragged_groups_and_no_cost_of_a_paper_are_refused():
    with pytest.raises(ValueError, match='every head at site `0.outputs`, found'):
        site().slice_to(torch.tensor([0, 1, 2, 3]))
    with pytest.raises(ValueError, match='found `cost="paper"` at `0.outputs`'):
        site().paper_cost(1, (5, 3))


def test_holder_is_the_identity_and_saves_what_it_holds():
    assert SiteHolder(GumbelChannelGate(8)).forward(X) is X
    assert list(SiteHolder(gate=GumbelChannelGate(8)).state_dict()) == ['gate.alpha']
    assert 'gate.kept' in SiteHolder(gate=BiMaskGate(8)).state_dict()
