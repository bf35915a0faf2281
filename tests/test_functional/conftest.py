"""Random problems of the tests of :mod:`mmkcr.functional`."""

import pytest
import torch


def _draw_rows(n, d, rank, seed, offset=1.):
    """Activations (n, d), fp64, of a rank, with variances of several sizes and means not 0."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    rows = normal(n, rank) @ normal(rank, d)
    return rows * torch.exp(normal(d)) + offset * normal(d)


@pytest.fixture(scope='session')
def draw_rows():
    """Function ``(n, d, rank, seed, offset=1.)`` that draws activations (n, d), fp64."""
    return _draw_rows
