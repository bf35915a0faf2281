"""The bi-mask against loops over units and options, its options, and its refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.methods.ofb.bimask import BiMaskGate


def gate_of(data):
    groups = data.draw(st.sampled_from([1, 2, 3, 6]))
    width = data.draw(st.sampled_from([4, 8, 12]))
    torch.manual_seed(data.draw(st.integers(0, 10**6)))
    gate = BiMaskGate(groups * width, groups,
                      order=data.draw(st.sampled_from(['importance', 'ordinal'])))
    gate.alpha.data.normal_(0, 1.5)
    gate.importance.data.normal_(0, 1.)
    gate.importance_weight.fill_(data.draw(st.sampled_from([0., 0.3, 0.99])))
    alive = torch.rand(gate.alive.shape) < 0.8
    alive[data.draw(st.integers(0, len(gate.group_sizes) - 1)), -1] = True
    gate.restrict(alive)
    return gate, groups, width


def naive_mask(gate, groups, width, hard):
    """Equations 3 and 4, a unit and an option at a time."""
    importance = gate.importance.detach().double().numpy().reshape(groups, width)
    logits = gate.alpha.detach().double().numpy()
    alive = gate.alive.numpy()
    options = [(a, b) for a in range(logits.shape[0]) for b in range(logits.shape[1])
               if alive[a, b]]
    scores = np.array([logits[option] for option in options])
    p = np.exp(scores - scores.max())
    p = p / p.sum()
    if hard:
        p = (np.arange(len(p)) == p.argmax()).astype(float)
    sizes = [(gate.group_sizes[a], gate.channel_sizes[b]) for a, b in options]
    most = (max(a for a, _ in sizes), max(b for _, b in sizes))
    here = sizes[int(p.argmax())] if hard else most
    sigmoid = 1 / (1 + np.exp(-importance))
    channels = [sorted(range(width), key=lambda c, g=g: -importance[g, c]) for g in range(groups)]
    if gate.order == 'ordinal':
        channels = [list(range(width))] * groups
    sums = [sum(sigmoid[g, c] for c in channels[g][:most[1]]) for g in range(groups)]
    order = sorted(range(groups), key=lambda g: -sums[g])
    if gate.order == 'ordinal':
        order = list(range(groups))
    weight = float(gate.importance_weight)
    mask = np.zeros((groups, width))
    for rank, group in enumerate(order):
        for place, channel in enumerate(channels[group]):
            kept = sum(q for q, (a, b) in zip(p, sizes) if rank < a and place < b)
            value = weight * sigmoid[group, channel] + (1 - weight) * kept
            mask[group, channel] = value if rank < here[0] and place < here[1] else 0.
    return mask.flatten(), float(sum(q * a * b for q, (a, b) in zip(p, sizes)))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_a_naive_version(data):
    gate, groups, width = gate_of(data)
    mask, size = naive_mask(gate, groups, width, hard=False)
    np.testing.assert_allclose(gate.train()().detach().numpy(), mask, atol=1e-5)
    assert float(gate.expected_size().detach()) == pytest.approx(size, rel=1e-5)
    assert float(gate.sparsity(gate.probabilities()).sum().detach()) == pytest.approx(size,
                                                                                      rel=1e-5)
    hard, size = naive_mask(gate, groups, width, hard=True)
    np.testing.assert_allclose(gate.eval()().detach().numpy(), hard, atol=1e-5)
    assert len(gate.selection()) == size
    assert torch.equal(gate.selection(), torch.tensor(hard).nonzero().flatten())


@pytest.mark.parametrize('total, groups, expected', [
    (384, 6, ((2, 4, 6), (16, 24, 32, 40, 48, 56, 64))),  # DeiT-S: 3 x 7 options
    (768, 12, ((2, 4, 6, 8, 10, 12), (16, 24, 32, 40, 48, 56, 64))),  # DeiT-B: 6 x 7
    (96, 3, ((2, 3), (8, 12, 16, 20, 24, 28, 32))),  # odd: the full count is an option
    (32, 1, ((1, ), (8, 12, 16, 20, 24, 28, 32))),
])
def test_options_of_the_papers_table(total, groups, expected):
    gate = BiMaskGate(total, groups)
    assert (gate.group_sizes, gate.channel_sizes) == expected
    assert int(gate.option_sizes().max()) == total


def test_width_has_17_options():
    assert BiMaskGate(384, start=1 / 2, step=1 / 32).channel_sizes == tuple(range(192, 385, 12))
    assert len(BiMaskGate(768, start=1 / 2, step=1 / 32).channel_sizes) == 17


def test_gradients_reach_importance_and_alpha_but_not_the_dead():
    gate = BiMaskGate(32, 2)
    gate.importance_weight.fill_(0.5)
    alive = torch.ones_like(gate.alive)
    alive[:, -2:] = False
    gate.restrict(alive)
    (gate() * torch.rand(32)).sum().backward()
    assert (gate.alpha.grad[:, :-2] != 0).all() and (gate.alpha.grad[:, -2:] == 0).all()
    dead = ~gate.supported()
    assert dead.sum() == 2 * 4 and (gate.importance.grad[dead] == 0).all()
    assert (gate.importance.grad[~dead] != 0).all()


def test_initial_values():
    torch.manual_seed(0)
    gate = BiMaskGate(4096)
    assert float(gate.importance.std()) == pytest.approx(0.2, rel=0.05)
    assert 0 <= float(gate.alpha.min()) and float(gate.alpha.max()) < 1
    assert not BiMaskGate(64, init='uniform').alpha.any()


@pytest.mark.parametrize('options, message', [
    (dict(init='zero'), "found 'zero'"), (dict(order='first'), "and 'first'"),
    (dict(groups=5), '`groups` that divide 32 units, found 5'),
    (dict(start=0.), 'from a share within'), (dict(step=0.), 'positive steps')])
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        BiMaskGate(32, **options)
