"""The budget is met by construction."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.core import CostModel, solve_budget
from mmkcr.core.budget import read_share
from mmkcr.core.selection import select_units
from mmkcr.methods.ofb.bimask import BiMaskGate
from mmkcr.methods.search.gumbel import GumbelChannelGate

COSTS = {'a': 7, 'b': 3, 'c': 11}
FIXED = 100


class Macs(CostModel):
    def __call__(self, sizes):
        return FIXED + sum(COSTS[site] * size for site, size in sizes.items())


macs = Macs()


@st.composite
def problems(draw):
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    widths = {site: draw(st.integers(4, 40)) for site in COSTS}
    scores = {site: torch.randn(width, generator=generator) for site, width in widths.items()}
    if draw(st.booleans()):  # ties
        scores = {site: score.round() for site, score in scores.items()}
    mins = {site: draw(st.integers(1, width)) for site, width in widths.items()}
    divisor = draw(st.sampled_from([1, 2, 4, 8]))
    return scores, mins, divisor, draw(st.floats(0, 1))


def sizes_of(kept):
    return {site: len(index) for site, index in kept.items()}


@settings(max_examples=300, deadline=None)
@given(problems())
def test_at_most_the_target_and_within_one_group(problem):
    scores, mins, divisor, where = problem
    lowest = macs({s: min(-(-mins[s] // divisor) * divisor, len(v)) for s, v in scores.items()})
    highest = macs({s: len(v) for s, v in scores.items()})
    target = int(lowest + where * (highest - lowest))
    kept = solve_budget(scores, macs, target, divisor, mins)
    sizes = sizes_of(kept)
    assert lowest <= macs(sizes) <= target
    for site, score in scores.items():
        total, size = len(score), sizes[site]
        assert size >= mins[site] and (size % divisor == 0 or size == total)
        assert kept[site].tolist() == sorted(set(kept[site].tolist()))
        inside = torch.zeros(total, dtype=torch.bool)
        inside[kept[site]] = True
        if size < total:  # the best are kept, and no further group of this site fits
            assert score[inside].min() >= score[~inside].max()
            grown = min((size // divisor + 1) * divisor, total)
            assert macs({**sizes, site: grown}) > target


@settings(max_examples=50, deadline=None)
@given(problems(), st.booleans())
def test_out_of_range_names_the_range(problem, above):
    scores, mins, divisor, _ = problem
    target = macs({s: len(v) for s, v in scores.items()}) + 1 if above else FIXED
    with pytest.raises(ValueError, match='reachable .*G to .*G MACs, found'):
        solve_budget(scores, macs, target, divisor, mins)


def test_without_target_keeps_open_gates():
    scores = dict(a=torch.tensor([1., -1., 2., 3., -5., 0.5, 1., 1., 1., -1.]))
    assert solve_budget(scores, macs, None)['a'].tolist() == [0, 2, 3, 5, 6, 7, 8]
    assert len(solve_budget(scores, macs, None, divisor=4)['a']) == 8
    assert len(solve_budget(dict(a=-torch.ones(10)), macs, None, 1, dict(a=3))['a']) == 3
    with pytest.raises(ValueError, match='`divisor` of at least 1, found 0'):
        solve_budget(scores, macs, None, 0)


def test_one_threshold_over_all_sites():
    scores = dict(a=torch.linspace(0, 1, 20), b=torch.linspace(0, 0.5, 20))

    class Sum(CostModel):
        def __call__(self, sizes):
            return sizes['a'] + sizes['b']

    kept = solve_budget(scores, Sum(), 20)
    chosen = torch.cat([scores[s][kept[s]] for s in scores])
    rest = torch.cat([scores[s][[i for i in range(20) if i not in kept[s]]] for s in scores])
    assert chosen.min() >= rest.max()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 999), st.sampled_from([1, 3, 8]), st.floats(0, 1), st.booleans())
def test_groups_enter_whole(seed, divisor, where, wanted):
    """Units of a group have one score; beside a site of single units."""
    generator = torch.Generator().manual_seed(seed)
    scores = {'a': torch.randn(6, generator=generator).repeat_interleave(4),
              'b': torch.randn(24, generator=generator)}
    lowest = macs({'a': math.lcm(divisor, 4), 'b': divisor})
    target = int(lowest + where * (macs({'a': 24, 'b': 24}) - lowest)) if wanted else None
    kept = solve_budget(scores, macs, target, divisor, groups={'a': 4})
    blocks = kept['a'].view(-1, 4)
    assert torch.equal(blocks - blocks[:, :1], torch.arange(4).expand(len(blocks), 4))
    assert not (blocks[:, 0] % 4).any()
    assert target is None or macs(sizes_of(kept)) <= target


def test_free_sites_beside_options_begin_at_the_divisor():
    """A reachable target was refused where the least size is no multiple of the divisor."""

    class Sum(CostModel):
        dense = 2280

        def __call__(self, sizes):
            return 10 * sum({**dict(free=128, options=100), **sizes}.values())

    options = BiMaskGate(100, start=0.25, step=0.125, init='uniform')
    options.alpha.data[0, -1] = 5  # all of them
    gates = dict(free=GumbelChannelGate(128, 2., min_size=8), options=options)
    for target in (1090, 1100, 1150, 1200, 1320):
        kept = sizes_of(select_units(gates, Sum(), target, 32))
        assert Sum()(kept) <= target and kept['free'] % 32 == 0
    with pytest.raises(ValueError, match='within the reachable 5.7e-07G'):
        select_units(gates, Sum(), 560, 32)


@settings(max_examples=100, deadline=None)
@given(value=st.floats(-10, 10), total=st.integers(1, 64), divisor=st.sampled_from([1, 3, 8]))
def test_equal_scores_in_double_precision(value, total, divisor):
    """Their means differ by rounding, which must not change the order of a site's groups."""
    scores = {site: torch.full((total, ), value, dtype=torch.float64) for site in COSTS}
    dense = macs(dict.fromkeys(COSTS, total))
    assert sizes_of(solve_budget(scores, macs, dense, divisor)) == dict.fromkeys(COSTS, total)


@pytest.mark.parametrize(('text', 'share'), [
    ('95%', 0.95), (0.9, 0.9), ('.5', 0.5), (1, 1), ('101%', 1.01), ('much', math.nan),
    ('5%%', math.nan), ('12G', math.nan)])
def test_a_share_is_read_as_it_is_written(text, share):
    assert read_share(text) == pytest.approx(share, nan_ok=True)
