"""Bases of a residual stream: the network stays, and the first channels hold the best of it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.stream import stream_basis, stream_losses

cases = st.tuples(st.integers(3, 12), st.integers(0, 10**6)).flatmap(
    lambda case: st.tuples(st.just(case[0]), st.integers(2, case[0]), st.just(case[1])))


def normed(rows):
    return F.layer_norm(rows, rows.shape[-1:], eps=1e-12)


@given(cases)
@settings(derandomize=True, deadline=None, max_examples=30)
def test_norms_follow_the_basis(draw_rows, case):
    full, width, seed = case
    stream = draw_rows(60, full, full, seed)
    rows = normed(stream)
    moment = rows.T @ rows / 60
    basis = stream_basis(moment, width)
    torch.testing.assert_close(basis.T @ basis, torch.eye(full).double())
    torch.testing.assert_close(basis.sum(0), torch.ones(full).double())
    torch.testing.assert_close(normed(stream @ basis), rows @ basis)
    # less their mean the first channels are the best directions of mean 0
    first = (rows @ basis)[:, :width]
    first = first - first.mean(1, keepdim=True)
    losses = stream_losses(moment)
    found = (rows.square().sum() - first.square().sum()) / 60
    assert losses.shape == (full + 1, ) and (losses.diff() <= 1e-12).all()
    torch.testing.assert_close(losses[width], found, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(losses[0], rows.square().sum() / 60)
    best = torch.linalg.svdvals(rows)[width - 1:].square().sum() / 60  # Eckart and Young
    torch.testing.assert_close(losses[width], best, rtol=1e-6, atol=1e-8)


def test_a_stream_of_low_rank_becomes_narrow_without_loss(draw_rows):
    """Its norm over the first channels gives the norm over all, up to a linear map."""
    stream = draw_rows(80, 12, 5, 0)
    rows = normed(stream)
    narrow = normed((stream @ stream_basis(rows.T @ rows, 7))[:, :7])  # five, their mean, and one
    shares = torch.linalg.lstsq(narrow, rows).solution
    torch.testing.assert_close(narrow @ shares, rows)


def test_a_width_out_of_range_is_refused():
    for width in (1, 5):
        with pytest.raises(ValueError, match=f'a width within 2 and 4, found {width}'):
            stream_basis(torch.eye(4), width)
