"""The Gumbel channel gate against its formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.models.gates import GumbelChannelGate


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_noise_is_the_difference_of_two_gumbels():
    gate = GumbelChannelGate(200_000)
    gate.resample(seeded(0))
    logistic = gate.noise.double()
    assert abs(logistic.mean()) < 0.02
    assert abs(logistic.var() - math.pi**2 / 3) < 0.05
    uniform = torch.rand(2, 200_000, generator=seeded(1), dtype=torch.float64)
    gumbels = -torch.log(-torch.log(uniform))
    quantiles = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    torch.testing.assert_close(logistic.quantile(quantiles),
                               (gumbels[0] - gumbels[1]).quantile(quantiles), atol=0.05, rtol=0)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 9999), st.floats(0.01, 5))
def test_soft_mask_formula(seed, temperature):
    gate = GumbelChannelGate(16, temperature=temperature)
    torch.nn.init.normal_(gate.alpha)
    gate.resample(seeded(seed))
    expected = torch.sigmoid((gate.alpha + gate.noise) / temperature)
    torch.testing.assert_close(gate.train()(), expected)
    torch.testing.assert_close(gate.expected_size(), torch.sigmoid(gate.alpha / temperature).sum())
    hard = gate.eval()()
    assert set(hard.tolist()) <= {0., 1.} and hard.sum() >= gate.min_size
    if (gate.alpha > 0).sum() >= gate.min_size:
        assert torch.equal(hard, (gate.alpha > 0).float())
    assert gate.selection().tolist() == hard.nonzero().flatten().tolist()


def test_same_generator_same_noise_and_mask_is_stable_within_a_step():
    one, two = GumbelChannelGate(32), GumbelChannelGate(32)
    one.resample(seeded(5))
    two.resample(seeded(5))
    assert torch.equal(one(), two()) and torch.equal(one(), one())
    two.resample(seeded(6))
    assert not torch.equal(one(), two())


def test_never_fewer_than_min_size():
    gate = GumbelChannelGate(16, init=-1., min_size=5).eval()
    gate.alpha.data[[3, 9]] = -0.5
    kept = gate.selection().tolist()
    assert len(kept) == 5 and {3, 9} <= set(kept) and kept == sorted(kept)


def test_gradients_and_entropy():
    gate = GumbelChannelGate(16, init=0.)
    assert gate.entropy().item() == pytest.approx(math.log(2))
    gate.resample(seeded(0))
    (gate().sum() + gate.expected_size() + gate.entropy()).backward()
    assert gate.alpha.grad.abs().min() > 0
    gate.alpha.data.fill_(1e4)
    assert gate.entropy().item() == 0


@pytest.mark.parametrize('kwargs, message', [
    (dict(total=4), r'`min_size` of a gate within \[1, 4\], found 8'),
    (dict(total=16, min_size=0), 'found 0'),
    (dict(total=16, temperature=0), 'positive gate `temperature`, found 0'),
])
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        GumbelChannelGate(**kwargs)
