"""Queries, keys, values and taps in closed form."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.attention_refit import (
    fold_heads,
    logit_bases,
    rotary_order,
    rotary_pairs,
)
from mmkcr.functional.kernel import tails

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


def factors_of(query_moment, key_moment, rank):
    """The first r channels of the bases, and the error at every rank."""
    query, key, values = logit_bases(query_moment, key_moment, rho=1e-10)
    return query[:, :rank], key[:, :rank], tails(values.square())


@given(cases)
@exactly
def test_logits_of_rank_r_lose_the_tail(draw_rows, case):
    heads, width, data_rank, rank, seed = case
    query = draw_heads(draw_rows, heads, width, data_rank, seed)
    key = draw_heads(draw_rows, heads, width, width, seed + 50)
    tq, tk, errors = factors_of(moment(query), moment(key), rank)
    logits = all_logits(query, key)
    narrow = all_logits(query @ tq.mT, key @ tk.mT)
    scale = float(mean_square(logits).max())
    assert torch.allclose(mean_square(narrow - logits), errors[:, rank], rtol=1e-4,
                          atol=1e-6 * scale)
    assert torch.allclose(errors[:, 0], mean_square(logits), rtol=1e-4, atol=1e-6 * scale)
    # the tail singular values of all logits as one matrix are a bound for any form of rank r
    exact = torch.linalg.svdvals(logits).square() / query.shape[1]**2
    assert torch.allclose(errors[:, rank], exact[:, rank:].sum(1), rtol=1e-4, atol=1e-6 * scale)
    # so no choice of r channels is better
    for seed in range(3):
        kept = torch.randperm(width, generator=torch.Generator().manual_seed(seed))[:rank]
        selected = mean_square(all_logits(query[..., kept], key[..., kept]) - logits)
        assert (errors[:, rank] <= selected + 1e-6 * scale).all()


@given(cases)
@exactly
def test_keys_may_be_centred_and_attention_does_not_see_it(draw_rows, case):
    heads, width, _, rank, seed = case
    query = draw_heads(draw_rows, heads, width, width, seed)
    key = draw_heads(draw_rows, heads, width, width, seed + 50)

    def relative(logits):  # what the softmax sees
        return logits - logits.mean(2, keepdim=True)

    def error(query_basis, key_basis):
        return mean_square(relative(all_logits(query @ query_basis.mT, key @ key_basis.mT)) -
                           relative(all_logits(query, key)))

    *bases, errors = factors_of(moment(query), moment(centred(key)), rank)
    scale = float(mean_square(relative(all_logits(query, key))).max())
    assert torch.allclose(error(*bases), errors[:, rank], rtol=1e-4, atol=1e-6 * scale)
    *others, _ = factors_of(moment(query), moment(key), rank)
    assert (error(*bases) <= error(*others) + 1e-6 * scale).all()


def test_dead_directions_of_the_logits_are_finite(draw_rows):
    query = draw_heads(draw_rows, 2, 6, 2, 0)
    query[1] = 0
    key = draw_heads(draw_rows, 2, 6, 6, 9)
    tq, tk, _ = factors_of(moment(query), moment(key), 4)
    narrow = all_logits(query @ tq.mT, key @ tk.mT)
    assert torch.allclose(narrow, all_logits(query, key), atol=1e-4)


def test_logits_through_the_projections(draw_rows):
    """Folded weights and biases, of fp32."""
    heads, width, dim = 2, 4, 10
    x = draw_rows(40, dim, dim, 0).float()
    weights = [draw_rows(heads * width, dim, dim, seed).float() for seed in (1, 2)]
    biases = [draw_rows(1, heads * width, 1, seed)[0].float() for seed in (3, 4)]

    def split(weight, bias):
        return F.linear(x, weight, bias).unflatten(1, (heads, -1)).transpose(0, 1)

    query, key = (split(*pair).double() for pair in zip(weights, biases))
    for rank in (3, width):
        *bases, errors = factors_of(moment(query), moment(key), rank)
        folded = [(fold_heads(weight, mixing), fold_heads(bias, mixing))
                  for weight, bias, mixing in zip(weights, biases, bases)]
        assert all(value.dtype == torch.float32 for pair in folded for value in pair)
        narrow = all_logits(*(split(*pair).double() for pair in folded))
        error = mean_square(narrow - all_logits(query, key))
        assert torch.allclose(error, errors[:, rank], rtol=1e-3, atol=1e-6 * float(errors.max()))


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
def test_rotary_pairs_lose_what_least_squares_leaves(draw_rows, layout, seed, heads, pairs, data):
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
    scale, left = float(mean_square(logits).sum()), 0.
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
        left += float((best - target).square().mean())
    assert float(order.errors[count]) == pytest.approx(left, rel=1e-4, abs=1e-6 * scale)


def test_rotary_layouts_are_checked():
    assert rotary_pairs(6, 'half').tolist() == [[0, 3], [1, 4], [2, 5]]
    assert rotary_pairs(6, 'interleaved').tolist() == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match='even head width'):
        rotary_pairs(5, 'half')
    with pytest.raises(ValueError, match='layout of'):
        rotary_pairs(4, 'whole')
