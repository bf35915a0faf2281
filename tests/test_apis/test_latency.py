"""Pairs, their ratio and the share of the MAC saving; nothing here depends on real time."""


import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mmcv.cnn import ConvModule
from torch import nn

from mmkcr.apis import slim
from mmkcr.apis.latency import (
    PairTiming,
    keep_share,
    measure_layers,
    measure_pair,
    scatter_gates,
    shrinking_layers,
)
from mmkcr.models import KCRSwinTransformer, KCRVisionTransformer

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)
VIT = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64),
           img_size=32, patch_size=8, drop_path_rate=0.1)
SWIN = dict(arch=dict(embed_dims=16, depths=[1, 2], num_heads=[2, 2]), img_size=32,
            window_size=4, patch_size=4, out_indices=[1])


class Clock:
    """Time that passes only when a model runs; the machine grows slower with every call."""

    def __init__(self):
        self.now, self.calls = 0., []

    def model(self, name, seconds, channels):
        return _Timed(self, name, seconds, channels)


class _Timed(nn.Module):

    def __init__(self, clock, name, seconds, channels):
        super().__init__()
        self.clock, self.name, self.seconds = clock, name, seconds
        self.conv = nn.Conv2d(3, channels, 1)

    def forward(self, x):
        self.clock.calls.append((self.name, len(x), torch.is_grad_enabled(),
                                 torch.is_autocast_enabled('cpu'), self.training))
        self.clock.now += self.seconds * (1 + 0.001 * len(self.clock.calls))
        return self.conv(x)


def measure(clock, **kwargs):
    dense, subnet = clock.model('dense', 2., 10), clock.model('slim', 1.7, 8)
    return measure_pair(dense, subnet, torch.zeros(4, 3, 5, 5), clock=lambda: clock.now, **kwargs)


def test_neighbours_are_compared_in_alternating_order():
    clock = Clock()
    timing = measure(clock, repeats=6, warmup=2)
    runs = [name for name, batch, *_ in clock.calls if batch == 4]
    assert len(runs) == 2 * (6 + 2)
    pairs = [tuple(runs[i:i + 2]) for i in range(0, len(runs), 2)]
    assert set(pairs) == {('dense', 'slim'), ('slim', 'dense')}
    assert all(a != b for a, b in zip(pairs, pairs[1:]))
    assert len(timing.dense) == len(timing.slim) == 6
    # the slowing machine moves the seconds, not the ratio
    assert max(timing.dense) > 1.005 * min(timing.dense)
    assert timing.ratio == pytest.approx(0.85, rel=2e-3)
    assert (timing.macs_dense, timing.macs_slim) == (3 * 10 * 25, 3 * 8 * 25)
    assert timing.share() == pytest.approx(0.15 / 0.2, rel=2e-2)


@pytest.mark.parametrize('amp', [None, 'bf16'])
def test_both_sides_run_in_eval_mode_without_gradients(amp):
    clock = Clock()
    measure(clock, repeats=1, warmup=0, amp=amp)
    states = [call[2:] for call in clock.calls if call[1] == 4]
    assert states == [(False, amp is not None, False)] * 2


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.5, 2)), min_size=1, max_size=9),
       st.integers(50, 99))
def test_share_is_of_the_median_ratio(samples, slim_macs):
    timing = PairTiming([load for load, _ in samples], [load * r for load, r in samples], 100,
                        slim_macs)
    ratios = sorted(ratio for _, ratio in samples)
    middle = (ratios[len(ratios) // 2] + ratios[(len(ratios) - 1) // 2]) / 2
    assert timing.ratio == pytest.approx(middle)
    assert timing.share() == pytest.approx((1 - middle) / (1 - slim_macs / 100))
    content = timing.to_dict()
    assert content['ratio_quartiles'][0] <= timing.ratio + 1e-9
    assert content['share_quartiles'][0] <= timing.share() + 1e-9


def test_equal_macs_have_no_share():
    assert PairTiming([1.], [1.], 5, 5).share() is None


@pytest.mark.parametrize('kwargs, message', [
    (dict(repeats=0), 'at least one repeat.*repeats=0'),
    (dict(warmup=-1), 'warmup=-1'),
    (dict(amp='fp8'), "among .*bf16.*, found 'fp8'"),
])
def test_refusals(kwargs, message):
    with pytest.raises(ValueError, match=message):
        measure(Clock(), **kwargs)


@pytest.mark.parametrize('cls, kwargs', [(KCRVisionTransformer, VIT), (KCRSwinTransformer, SWIN)])
def test_scattered_gates_keep_one_ratio_everywhere_at_random(cls, kwargs):
    supernet = cls(**kwargs, gates=GATES)
    scatter_gates(supernet)
    subnet, structure = slim(supernet, 0.75, 1, (3, 32, 32))
    assert structure.macs['subnet'] <= 0.75 * structure.macs['dense']
    share = keep_share(structure)
    assert 0.2 < share < 0.8
    for site in structure.sites.values():
        assert abs(len(site.kept) - share * site.total) <= 1.5
        assert site.kept != list(range(len(site.kept)))


@pytest.mark.parametrize('cls, kwargs', [(KCRVisionTransformer, VIT), (KCRSwinTransformer, SWIN)])
def test_a_subnet_compiles_without_a_graph_break(cls, kwargs):
    supernet = cls(**kwargs, gates=GATES)
    scatter_gates(supernet)
    subnet = slim(supernet, 0.75, 8, (3, 32, 32))[0]
    subnet.eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        compiled = torch.compile(subnet, fullgraph=True, backend='eager')(x)[-1]
        torch.testing.assert_close(compiled, subnet(x)[-1])


# ---- the layers that shrink --------------------------------------------------------------------


class Layers(nn.Module):
    """A convolution that shrinks, a layer that does not, and one more that runs twice."""

    def __init__(self, clock, hidden, slow):
        super().__init__()
        self.clock, self.slow = clock, slow
        self.conv = ConvModule(3, hidden, 1, norm_cfg=dict(type='BN'))
        self.rest = nn.Conv2d(3, 5, 1)
        self.twice = nn.Linear(hidden, hidden)
        for module, seconds in ((self.conv, hidden), (self.rest, slow), (self.twice, hidden / 10)):
            module.register_forward_hook(lambda *_, seconds=seconds: clock.pass_(seconds))

    def forward(self, x):
        self.clock.pass_(self.slow)  # a gather, say
        self.rest(x)
        x = self.conv(x).movedim(1, -1)
        return self.twice(self.twice(x))


class Passing(Clock):

    def pass_(self, seconds):
        self.now += seconds


def test_layers_that_shrink_are_timed_alone():
    clock = Passing()
    dense, subnet = Layers(clock, 20, 1), Layers(clock, 10, 3)
    timing = measure_layers(dense, subnet, torch.zeros(2, 3, 4, 4), 3, 1, clock=lambda: clock.now)
    assert timing.layers == {'conv': (20, 10), 'twice': (4, 2)}
    assert timing.sums == (24, 12) and timing.seconds == (26, 18)
    saved = 1 - (3 * 10 + 3 * 5 + 2 * 10 * 10) / (3 * 20 + 3 * 5 + 2 * 20 * 20)
    assert timing.ceiling() == pytest.approx(12 / 26 / saved)
    assert timing.to_dict()['ceiling'] == timing.ceiling()
    before = clock.now
    dense(torch.zeros(2, 3, 4, 4))
    assert clock.now - before == 26 and len(dense.conv._forward_hooks) == 1  # nothing is left


@pytest.mark.parametrize('cls, kwargs', [(KCRVisionTransformer, VIT), (KCRSwinTransformer, SWIN)])
def test_layers_that_shrink_are_those_of_the_sites(cls, kwargs):
    supernet = cls(**kwargs, gates=GATES)
    scatter_gates(supernet)
    subnet, structure = slim(supernet, 0.75, 8, (3, 32, 32))
    found = shrinking_layers(cls(**kwargs), subnet)
    ffns = [site.removesuffix('.mlp_channels') for site in structure.sites]
    assert found == [f'{ffn}.layers.{part}' for ffn in ffns for part in ('0.0', '1')]


def test_models_of_one_size_have_no_layers_that_shrink():
    with pytest.raises(ValueError, match='expected a subnet with smaller layers.*found none'):
        measure_layers(*(Layers(Passing(), 10, 1) for _ in range(2)), torch.zeros(2, 3, 4, 4))
