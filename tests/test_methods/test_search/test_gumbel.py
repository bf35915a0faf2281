"""The Gumbel channel gate against its formulas."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from mmkcr.methods.search.gumbel import GumbelChannelGate
from mmkcr.methods.search.schedules import TemperatureDecayHook


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
    hard = gate.eval()()
    assert set(hard.tolist()) <= {0., 1.} and hard.sum() >= gate.min_size
    if (gate.alpha > 0).sum() >= gate.min_size:
        assert torch.equal(hard, (gate.alpha > 0).float())
    assert gate.selection().tolist() == hard.nonzero().flatten().tolist()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 9999), st.sampled_from([1, 2, 8, 16]))
def test_a_group_of_neighbours_is_one_gate(seed, group):
    """The same as a gate of single units whose logits and noise are repeated."""
    gate, single = GumbelChannelGate(32, group=group, min_size=3), GumbelChannelGate(32)
    assert gate.min_size % group == 0 and gate.min_size >= 3
    gate.alpha.data = torch.randn(32 // group, generator=seeded(seed))
    gate.resample(seeded(seed))
    single.alpha.data = gate.alpha.detach().repeat_interleave(group)
    single.noise, single.min_size = gate.noise.repeat_interleave(group), gate.min_size
    torch.testing.assert_close(gate.train()(), single.train()())
    assert torch.equal(gate.selection(), single.selection())
    assert torch.equal(gate.eval()(), single.eval()())
    assert torch.equal(gate.scores(), single.scores())
    assert gate.hard_size() == single.hard_size() and gate.hard_size() % group == 0
    torch.testing.assert_close(gate.entropy(), single.entropy())
    logits = torch.randn(32, generator=seeded(seed + 1))
    gate.start(logits)
    torch.testing.assert_close(gate.scores().view(-1, group).mean(1),
                               logits.view(-1, group).mean(1))


def test_expected_size_of_groups_is_the_mean_over_the_noise():
    gate, generator, sizes = GumbelChannelGate(384, init=-2., min_size=40, group=16), seeded(0), []
    for _ in range(3000):
        gate.resample(generator)
        sizes.append(max(16 * int((gate.alpha + gate.noise > 0).sum()), gate.min_size))
    assert gate.min_size == 48
    assert float(gate.expected_size()) == pytest.approx(sum(sizes) / len(sizes), rel=0.03)


def test_groups_that_do_not_divide_the_channels_are_refused():
    with pytest.raises(ValueError, match='`group` of channels that divides the 96 of a gate, '
                                         'found 36'):
        GumbelChannelGate(96, group=36)


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


@pytest.mark.parametrize('alpha', [-6., -4., -1., 2.])
def test_expected_size_is_the_mean_over_the_noise(alpha):
    """Of hard gates, and of soft ones as the temperature falls; also around the floor of 8."""
    gate = GumbelChannelGate(384, init=alpha, temperature=1.6e-4)
    generator, hard, soft = seeded(0), [], []
    for _ in range(3000):
        gate.resample(generator)
        hard.append(max(int((gate.alpha + gate.noise > 0).sum()), gate.min_size))
        soft.append(max(float(gate.train()().sum()), gate.min_size))
    expected = float(gate.expected_size())
    assert expected == pytest.approx(sum(hard) / len(hard), rel=0.01)
    assert expected == pytest.approx(sum(soft) / len(soft), rel=0.01)
    assert expected >= gate.min_size


def test_the_price_of_a_channel_lives_through_the_published_schedule():
    """Its gradient at 0, a half and all of the way is what it was; the size rises with alpha."""
    path = Path(__file__).parents[3] / 'configs/_base_/schedules/kcr_search_bs512_200e.py'
    config = Config.fromfile(path)
    settings = dict(next(hook for hook in config.custom_hooks if 'Temperature' in hook.type))
    assert settings.pop('type') == 'mmkcr.TemperatureDecayHook'
    schedule = TemperatureDecayHook(**settings)
    gate = GumbelChannelGate(97)
    with torch.no_grad():
        gate.alpha.copy_(torch.linspace(-6, 6, 97))
    keep = torch.sigmoid(gate.alpha.detach())
    for epoch in range(config.train_cfg.max_epochs):
        gate.temperature = schedule.temperature(epoch)
        force, = torch.autograd.grad(gate.expected_size(), gate.alpha)
        torch.testing.assert_close(force, keep * (1 - keep), rtol=1e-3, atol=0)
    assert gate.temperature == pytest.approx(4.5 * 0.95**199)  # as printed: no floor cuts it
    sizes = []
    for alpha in torch.linspace(-6, 6, 121):
        gate.alpha.data.fill_(alpha)
        sizes.append(float(gate.expected_size()))
    assert sizes[0] >= gate.min_size and sizes == sorted(sizes)
    assert len(set(sizes[40:])) == len(sizes[40:])  # rises wherever the floor is not reached


def test_saturated_gates_have_gradients_that_are_finite():
    for alpha in (-200., 200.):
        gate = GumbelChannelGate(16, init=alpha)
        size = gate.expected_size()
        size.backward()
        assert float(size) == pytest.approx(8 if alpha < 0 else 16)
        assert torch.isfinite(gate.alpha.grad).all()


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


@pytest.mark.parametrize('alpha', [-6., 0., 2., 6.])
def test_the_only_size_has_no_price(alpha):
    """One head, or as few channels as `min_size` asks for."""
    for total, group in ((1, 1), (8, 1), (16, 16)):
        only = GumbelChannelGate(total, alpha, min_size=total, group=group)
        size = only.expected_size()
        assert float(size) == pytest.approx(total)
        force, = torch.autograd.grad(size, only.alpha)
        assert float(force.abs().max()) < 1e-6
