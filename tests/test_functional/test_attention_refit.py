"""Queries, keys, values and taps in closed form."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.attention_refit import (
    add_maps,
    fit_taps,
    fold_heads,
    low_rank_logits,
    low_rank_values,
    rotary_order,
    rotary_pairs,
    rotary_refit,
    tap_moments,
)
from mmkcr.functional.moments import moments_of

exactly = settings(derandomize=True, deadline=None, max_examples=30)
layouts = pytest.mark.parametrize('layout', ['half', 'interleaved'])


def mean_square(values):
    return values.square().flatten(1).mean(1)


def all_logits(query, key):
    """Of every query with every key: (H, n, d) and (H, n, d) to (H, n, n)."""
    return query @ key.mT


def moment(rows):
    return rows.mT @ rows / rows.shape[1]


def centred(rows):
    return rows - rows.mean(1, keepdim=True)


def draw_heads(draw_rows, heads, width, rank, seed, n=30):
    return torch.stack([draw_rows(n, width, rank, seed + i) for i in range(heads)])


cases = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(0, 10**6)).flatmap(
    lambda case: st.tuples(st.just(case[0]), st.just(case[1]), st.integers(1, case[1]),
                           st.integers(1, case[1]), st.just(case[2])))


@given(cases)
@exactly
def test_logits_of_rank_r_lose_the_tail(draw_rows, case):
    heads, width, data_rank, rank, seed = case
    query = draw_heads(draw_rows, heads, width, data_rank, seed)
    key = draw_heads(draw_rows, heads, width, width, seed + 50)
    factors = low_rank_logits(moment(query), moment(key), rank)
    logits = all_logits(query, key)
    narrow = all_logits(query @ factors.query.mT, key @ factors.key.mT)
    scale = mean_square(logits)
    assert factors.query.shape == factors.key.shape == (heads, rank, width)
    assert torch.allclose(mean_square(narrow - logits), factors.errors[:, rank], rtol=1e-6,
                          atol=1e-9 * float(scale.max()))
    assert torch.allclose(factors.errors[:, 0], scale, rtol=1e-8)
    # the tail singular values of all logits as one matrix are a bound for any form of rank r
    exact = torch.linalg.svdvals(logits).square() / query.shape[1]**2
    assert torch.allclose(factors.errors[:, rank], exact[:, rank:].sum(1), rtol=1e-6,
                          atol=1e-9 * float(scale.max()))
    # so no choice of r channels is better
    for seed in range(3):
        kept = torch.randperm(width, generator=torch.Generator().manual_seed(seed))[:rank]
        selected = mean_square(all_logits(query[..., kept], key[..., kept]) - logits)
        assert (factors.errors[:, rank] <= selected + 1e-9 * scale).all()


@given(cases)
@exactly
def test_keys_may_be_centred_and_attention_does_not_see_it(draw_rows, case):
    heads, width, _, rank, seed = case
    query = draw_heads(draw_rows, heads, width, width, seed)
    key = draw_heads(draw_rows, heads, width, width, seed + 50)
    factors = low_rank_logits(moment(query), moment(centred(key)), rank)

    def relative(logits):  # what the softmax sees
        return logits - logits.mean(2, keepdim=True)

    error = relative(all_logits(query @ factors.query.mT, key @ factors.key.mT)) - \
        relative(all_logits(query, key))
    scale = float(mean_square(relative(all_logits(query, key))).max())
    assert torch.allclose(mean_square(error), factors.errors[:, rank], rtol=1e-6,
                          atol=1e-9 * scale)
    other = low_rank_logits(moment(query), moment(key), rank)
    worse = relative(all_logits(query @ other.query.mT, key @ other.key.mT)) - \
        relative(all_logits(query, key))
    assert (mean_square(error) <= mean_square(worse) + 1e-9 * scale).all()


def test_dead_directions_of_the_logits_are_zeros_not_nan(draw_rows):
    query = draw_heads(draw_rows, 2, 6, 2, 0)
    query[1] = 0
    key = draw_heads(draw_rows, 2, 6, 6, 9)
    factors = low_rank_logits(moment(query), moment(key), 4)
    assert torch.isfinite(factors.query).all() and torch.isfinite(factors.key).all()
    narrow = all_logits(query @ factors.query.mT, key @ factors.key.mT)
    assert torch.allclose(narrow, all_logits(query, key), atol=1e-6)


def test_logits_through_the_projections(draw_rows):
    """Folded weights and biases, of fp32, at full rank the same ones."""
    heads, width, rank, dim = 2, 4, 3, 10
    x = draw_rows(40, dim, dim, 0).float()
    weights = [draw_rows(heads * width, dim, dim, seed).float() for seed in (1, 2)]
    biases = [draw_rows(1, heads * width, 1, seed)[0].float() for seed in (3, 4)]

    def split(weight, bias):
        return F.linear(x, weight, bias).unflatten(1, (heads, -1)).transpose(0, 1)

    query, key = (split(*pair).double() for pair in zip(weights, biases))
    for r in (rank, width):
        factors = low_rank_logits(moment(query), moment(key), r)
        folded = [fold_heads(weight, bias, mixing) for weight, bias, mixing in zip(
            weights, biases, (factors.query, factors.key))]
        assert all(value.dtype == torch.float32 for pair in folded for value in pair)
        narrow = all_logits(*(split(*pair).double() for pair in folded))
        error = mean_square(narrow - all_logits(query, key))
        assert torch.allclose(error, factors.errors[:, r], rtol=1e-3,
                              atol=1e-8 * float(factors.errors.max()))
    assert all(torch.equal(new[0], old) for new, old in zip(folded, weights))
    assert fold_heads(weights[0], None, factors.query)[1] is None
    with pytest.raises(ValueError, match='within 1 and the head width 4, found `5`'):
        low_rank_logits(moment(query), moment(key), 5)


def rotate(rows, angles, layout):
    """Rotary positions: (H, n, d) by angles (n, d / 2), as hosts write it."""
    cos, sin = angles.cos(), angles.sin()
    if layout == 'half':
        first, second = rows.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
    first, second = rows[..., ::2], rows[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)


@layouts
@given(seed=st.integers(0, 10**6), heads=st.integers(1, 3), pairs=st.integers(1, 5), data=st.data())
@exactly
def test_rotary_pairs_are_refitted_by_least_squares(draw_rows, layout, seed, heads, pairs, data):
    n, width = 25, 2 * pairs
    angles = 10 * torch.rand(n, pairs, dtype=torch.float64)
    query = draw_heads(draw_rows, heads, width, width, seed, n)
    key = draw_heads(draw_rows, heads, width, width, seed + 50, n)
    turned = [rotate(rows, angles, layout) for rows in (query, key)]
    moments = [moment(rows) for rows in turned]
    logits = all_logits(*turned)
    order = rotary_order(*moments, layout, rho=1e-8)
    assert float(order.errors[0]) == pytest.approx(float(mean_square(logits).sum()), rel=1e-6)
    count = data.draw(st.integers(1, pairs))
    kept = order.order[:count].sort().values
    channels, mixing = rotary_refit(*moments, kept, layout, rho=1e-8)
    # narrower heads, rotated by the angles of the kept pairs
    narrow = all_logits(rotate(query @ mixing.mT, angles[:, kept], layout),
                        rotate(key[..., channels], angles[:, kept], layout))
    errors = mean_square(narrow - logits)
    scale = float(mean_square(logits).max())
    for head in range(heads):
        pair_channels = rotary_pairs(width, layout)
        columns = []
        for pair in kept.tolist():
            q, k = (rows[head][:, pair_channels[pair]] for rows in turned)
            quarter = torch.stack([-k[:, 1], k[:, 0]], 1)
            columns += [(q @ k.T).flatten(), (q @ quarter.T).flatten()]
        parts = torch.stack(columns, 1)
        target = logits[head].flatten()
        best = parts @ torch.linalg.lstsq(parts, target, driver='gelsd').solution
        expected = float((best - target).square().mean())
        assert float(errors[head]) == pytest.approx(expected, rel=1e-5, abs=1e-6 * scale)
    # and never worse than the pairs as they are
    plain = all_logits(rotate(query[..., channels], angles[:, kept], layout),
                       rotate(key[..., channels], angles[:, kept], layout))
    assert (errors <= mean_square(plain - logits) + 1e-9 * scale).all()
    assert float(errors.sum()) <= float(order.errors[count]) + 1e-6 * scale
    if count == pairs:
        assert torch.allclose(narrow, logits, atol=1e-9 * float(logits.abs().max()))


def test_rotary_layouts_are_checked():
    assert rotary_pairs(6, 'half').tolist() == [[0, 3], [1, 4], [2, 5]]
    assert rotary_pairs(6, 'interleaved').tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match='even head width'):
        rotary_pairs(5, 'half')
    with pytest.raises(ValueError, match='layout of'):
        rotary_pairs(4, 'whole')


def attend(maps, values):
    """Attention's output before the projection: (B, H, N, N) and (B, N, H d) to (B N, H d)."""
    heads = values.unflatten(2, (maps.shape[1], -1)).transpose(1, 2)
    return (maps @ heads).transpose(1, 2).flatten(2).flatten(0, 1)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 8), st.integers(0, 10**6), st.data())
@exactly
def test_values_of_rank_r(draw_rows, heads, width, outputs, seed, data):
    rank = data.draw(st.integers(1, width))
    dim, full = 12, heads * width
    x = draw_rows(4 * 9, dim, dim, seed).view(4, 9, dim)
    maps = torch.softmax(3 * torch.randn(4, heads, 9, 9, dtype=torch.float64,
                                         generator=torch.Generator().manual_seed(seed)), -1)
    value_weight, value_bias = draw_rows(full, dim, dim, seed + 1), draw_rows(1, full, 1, seed)[0]
    weight, bias = draw_rows(outputs, full, full, seed + 2), draw_rows(1, outputs, 1, seed)[0]
    old = attend(maps, F.linear(x, value_weight, value_bias))
    moments = moments_of(old)
    targets = F.linear(old, weight, bias)

    def error(outputs):
        return float((outputs - targets).square().sum(1).mean())

    for rho in (0., 1e-3, 1.):
        new = low_rank_values(value_weight, value_bias, weight, bias, moments.covariance,
                              moments.mean, heads, rank, rho)
        narrow = attend(maps, F.linear(x, new.value_weight, new.value_bias))
        found = error(F.linear(narrow, new.weight, new.bias))
        scale = error(targets.mean(0)) + 1e-12
        tails = new.singular_values[:, rank:].square().sum()
        if heads == 1:
            assert found == pytest.approx(float(tails), rel=1e-5, abs=1e-7 * scale)
            for choice in range(3):
                kept = torch.randperm(width, generator=torch.Generator().manual_seed(choice))[:rank]
                selected = F.linear(old[:, kept], weight[:, kept])
                selected = selected + (targets - selected).mean(0)
                assert found <= error(selected) + 1e-7 * scale
        bound = float(new.singular_values[:, rank:].norm(dim=1).sum())  # heads' errors may add up
        assert found**.5 <= bound + 1e-4 * scale**.5
        if rank >= min(width, outputs):
            assert found <= 1e-9 * scale
    if rank == width:
        assert torch.equal(new.value_weight, value_weight) and torch.equal(new.weight, weight)


def test_values_of_fp32_without_biases(draw_rows):
    value_weight, weight = draw_rows(8, 6, 6, 0).float(), draw_rows(7, 8, 7, 1).float()
    moments = moments_of(draw_rows(40, 8, 8, 2))
    new = low_rank_values(value_weight, None, weight, None, moments.covariance, moments.mean, 2, 3)
    assert new.value_bias is None and new.value_weight.shape == (6, 6)
    assert new.weight.shape == (7, 6) and new.bias.shape == (7, )
    assert all(value.dtype == torch.float32 for value in (new.value_weight, new.weight, new.bias))
    # a channel has norms alike in both
    norms = [new.value_weight.norm(dim=1), new.weight.norm(dim=0)]
    assert float((norms[0] / norms[1]).log().abs().max()) < 1.5
    with pytest.raises(ValueError, match='within 1 and the head width 4, found `0`'):
        low_rank_values(value_weight, None, weight, None, moments.covariance, moments.mean, 2, 0)


@given(st.integers(1, 3), st.integers(2, 5), st.integers(2, 5), st.sampled_from([1, 3, 5]),
       st.integers(0, 10**6))
@exactly
def test_taps_are_least_squares_on_the_unfolded_maps(channels, height, width, side, seed):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    values = normal(12, channels, height, width) + 2
    mixes = torch.softmax(2 * normal(12, height * width, height * width), -1)
    targets = (mixes @ values.flatten(2).mT).mT.view_as(values)
    moments = tap_moments(channels, side)
    for part in range(0, 12, 5):
        add_maps(moments, values[part:part + 5], targets[part:part + 5])
    taps, bias = fit_taps(moments, rho=0.)
    found = F.conv2d(values, taps.unsqueeze(1), bias, padding=side // 2, groups=channels)
    gaussian = torch.full((channels, side, side), 1 / side**2, dtype=torch.float64)
    plain = F.conv2d(values, gaussian.unsqueeze(1), padding=side // 2, groups=channels)
    pulled = fit_taps(moments, gaussian, rho=.1)
    near = F.conv2d(values, pulled[0].unsqueeze(1), pulled[1], padding=side // 2, groups=channels)
    for channel in range(channels):
        rows = F.unfold(values[:, channel:channel + 1], side, padding=side // 2)
        rows = rows.mT.flatten(0, 1)
        rows = torch.cat([rows, torch.ones(len(rows), 1)], 1)
        target = targets[:, channel].flatten()
        best = rows @ torch.linalg.lstsq(rows, target.unsqueeze(1), driver='gelsd').solution[:, 0]

        def error(outputs, target=target):
            return float((outputs.flatten() - target).square().mean())

        expected = error(best)
        assert error(found[:, channel]) == pytest.approx(expected, rel=1e-6, abs=1e-12)
        assert error(near[:, channel]) <= error(plain[:, channel]) + 1e-12
        assert expected <= error(near[:, channel]) + 1e-12


def test_attention_that_is_a_convolution_is_found():
    values = torch.randn(20, 4, 6, 5, dtype=torch.float64)
    taps, bias = torch.randn(4, 3, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    targets = F.conv2d(values, taps.unsqueeze(1), bias, padding=1, groups=4)
    moments = tap_moments(4)
    add_maps(moments, values, targets)
    found, found_bias = fit_taps(moments, rho=0.)
    assert torch.allclose(found, taps) and torch.allclose(found_bias, bias)
