"""Streaming moments against NumPy, in any chunking."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional import moments as module
from mmkcr.functional.moments import Moments
from moments import moments_of

exactly = settings(derandomize=True, deadline=None, max_examples=40)


READ = ('mean', 'covariance', 'target_mean', 'cross_covariance')


def close(first, second, scale=1.):
    return torch.allclose(first, second, rtol=1e-11, atol=1e-11 * scale)


def same(first, second):
    """Whether two accumulators hold the same but for rounding."""
    pairs = [(getattr(first, name), getattr(second, name)) for name in READ]
    scale = max(float(value.abs().max()) for _, value in pairs if value.numel())
    return first.count == second.count and all(close(*pair, scale) for pair in pairs)


@given(st.integers(1, 40), st.integers(1, 7), st.integers(0, 3), st.integers(0, 10**6))
@exactly
def test_moments_are_those_of_numpy(draw_rows, n, d, p, seed):
    rows = draw_rows(n, d + p, d, seed)
    features, targets = rows[:, :d], rows[:, d:]
    moments = moments_of(features, targets if p else None)
    expected = torch.from_numpy(np.cov(rows.T.numpy(), bias=True).reshape(d + p, d + p))
    scale = float(expected.abs().max())
    assert moments.count == n
    assert close(moments.mean, features.mean(0))
    assert close(moments.covariance, expected[:d, :d], scale)
    assert close(moments.second_moment, features.T @ features / n, scale + 1)
    assert close(moments.cross_covariance, expected[d:, :d], scale)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), st.integers(0, 10**6))
@exactly
def test_any_chunking_equals_one_pass(draw_rows, sizes, seed):
    rows = draw_rows(sum(sizes), 6, 6, seed)
    whole = Moments(4, 2).add(rows[:, :4], rows[:, 4:])
    one_by_one = Moments(4, 2)
    for part in rows.split(sizes):
        one_by_one.add(part[:, :4], part[:, 4:])
    assert same(one_by_one, whole)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any), st.integers(0, 10**6))
@exactly
def test_a_union_is_the_stream_of_all_rows(draw_rows, sizes, seed):
    rows = draw_rows(sum(sizes), 6, 6, seed)
    parts = [moments_of(part[:, :4], part[:, 4:]) if len(part) else Moments(4, 2)
             for part in rows.split(sizes)]
    assert same(Moments.union(parts), moments_of(rows[:, :4], rows[:, 4:]))


def test_blocks_and_chunks_do_not_matter(draw_rows, monkeypatch):
    rows = draw_rows(50, 11, 11, 0)
    whole = moments_of(rows)
    monkeypatch.setattr(module, 'CHUNK', 7)
    monkeypatch.setattr(module, 'BLOCK', 3)
    assert same(moments_of(rows), whole)
    assert torch.equal(whole.covariance, whole.covariance.T)


def test_a_large_mean_costs_no_digits(draw_rows):
    rows = draw_rows(200, 5, 5, 0, offset=0.)
    shifted = (rows + 1e8) - 1e8  # what fp64 can hold of it beside 1e8
    assert torch.allclose(moments_of(rows + 1e8).covariance, moments_of(shifted).covariance,
                          rtol=1e-9)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16, torch.float32])
def test_sums_are_fp64_whatever_the_dtype(dtype):
    rows = torch.randn(30, 4).to(dtype)
    assert moments_of(rows).covariance.dtype == torch.float64
    assert same(moments_of(rows), moments_of(rows.double()))


def test_leading_axes_are_rows_or_streams(draw_rows):
    rows = draw_rows(24, 3, 3, 0)
    assert same(Moments(3).add(rows.view(2, 3, 4, 3)), moments_of(rows))
    streams = rows.view(2, 12, 3)
    moments = Moments(3, 1, batch=(2, )).add(streams, streams[..., :1])
    for i in range(2):
        alone = moments_of(streams[i], streams[i, :, :1])
        for name in ('mean', 'covariance', 'cross_covariance', 'target_mean'):
            assert close(getattr(moments, name)[i], getattr(alone, name))


@pytest.mark.parametrize('bad', [float('nan'), -float('inf')])
def test_values_that_are_not_finite_are_refused_and_leave_nothing(bad):
    moments = Moments(3, 1, name='layers.0.ffn').add(torch.randn(5, 3), torch.randn(5, 1))
    before = copy.deepcopy(moments)
    rows, targets = torch.randn(3000, 3), torch.randn(3000, 1)
    rows[2999, 1] = bad
    with pytest.raises(ValueError, match='finite features of `layers.0.ffn`'):
        moments.add(rows, targets)
    targets[0] = bad
    with pytest.raises(ValueError, match='finite targets of `layers.0.ffn`'):
        moments.add(torch.randn(3000, 3), targets)
    assert moments.count == before.count
    assert all(torch.equal(getattr(moments, name), getattr(before, name)) for name in READ)


def test_wrong_input_is_refused():
    rows = torch.randn(4, 3)
    for message, moments, *wrong in (
            (r'features of `Moments` of width 3, found \(4, 2\)', Moments(3), rows[:, :2]),
            ('targets of `Moments` of width 0', Moments(3), rows, rows),
            (r'targets of `Moments` of width 1, found \(4, 0\)', Moments(3, 1), rows)):
        with pytest.raises(ValueError, match=message):
            moments.add(*wrong)
    with pytest.raises(ValueError, match='at least one row of `Moments`, found 0'):
        Moments(3).covariance  # noqa: B018


def test_moments_of_mixtures():
    torch.manual_seed(0)
    rows, mixing = torch.randn(200, 6).double() + 1, torch.randn(4, 6).double()
    found, expected = moments_of(rows).mixed(mixing), moments_of(rows @ mixing.T)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance, expected.covariance)
    assert found.count == 200
