"""The basis of a residual stream: the network stays, and the first channels hold the best of it."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.stream import stream_basis, stream_losses


def normed(rows):
    return F.layer_norm(rows, rows.shape[-1:], eps=1e-12)


@given(full=st.integers(3, 12), seed=st.integers(0, 10**6))
@settings(derandomize=True, deadline=None, max_examples=30)
def test_norms_follow_the_basis_and_any_number_of_channels_is_best(draw_rows, full, seed):
    stream = draw_rows(60, full, full, seed)
    rows = normed(stream)
    moment = rows.T @ rows / 60
    basis, losses = stream_basis(moment), stream_losses(moment)
    torch.testing.assert_close(basis.T @ basis, torch.eye(full).double())
    torch.testing.assert_close(basis.sum(0), torch.ones(full).double())
    torch.testing.assert_close(normed(stream @ basis), rows @ basis)
    assert losses.shape == (full + 1, ) and (losses.diff() <= 1e-12).all()
    torch.testing.assert_close(losses[0], rows.square().sum() / 60)
    for width in range(2, full + 1):  # less their mean the first are the best directions of mean 0
        first = (rows @ basis)[:, :width]
        first = first - first.mean(1, keepdim=True)
        found = (rows.square().sum() - first.square().sum()) / 60
        torch.testing.assert_close(losses[width], found, rtol=1e-6, atol=1e-8)
        best = torch.linalg.svdvals(rows)[width - 1:].square().sum() / 60  # Eckart and Young
        torch.testing.assert_close(losses[width], best, rtol=1e-6, atol=1e-8)


def test_a_stream_of_low_rank_becomes_narrow_without_loss(draw_rows):
    """Its norm over the first channels gives the norm over all, up to a linear map."""
    stream = draw_rows(80, 12, 5, 0)
    rows = normed(stream)
    basis = stream_basis(rows.T @ rows)
    for width in (7, 9):  # five, their mean, and what a norm takes away
        narrow = normed((stream @ basis)[:, :width])
        torch.testing.assert_close(narrow @ torch.linalg.lstsq(
            narrow, rows, driver='gelsd').solution, rows)
