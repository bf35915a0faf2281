"""Random problems of the tests of :mod:`mmkcr.functional`."""

import pytest


@pytest.fixture(scope='session')
def draw_rows():
    """``draw_rows(n, d, rank, seed, offset=1.)``: activations (n, d), fp64, of a rank.

    Their variances have several sizes, and their means are not 0.
    """
    import torch

    def draw(n, d, rank, seed, offset=1.):
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        rows = normal(n, rank) @ normal(rank, d)
        return rows * torch.exp(normal(d)) + offset * normal(d)

    return draw
