"""Bases of a residual stream whose first channels are the best subspace (SPEC 9).

Between layer norms that are followed by linear maps a stream may be turned by any orthogonal Q
with ``Q^T 1 = 1``: ``LN(Q^T x) = Q^T LN(x)`` but for the affine part, which folds into the maps.
Then the network computes what it did. What is kept of a narrower stream are the first r channels;
a norm over these takes their own mean, so they must hold the best r - 1 directions of mean 0
whatever their mean is. Helmert's matrix gives a basis that does it for every r at once.
"""

import torch
from torch import Tensor


def stream_basis(moment: Tensor) -> Tensor:
    """An orthogonal Q, ``Q^T 1 = 1``, whose first channels hold the best directions.

    Of the D - 1 directions of mean 0 the best are those of the largest eigenvalues. The first r
    channels of ``Q^T x``, less their mean, are the best r - 1, **for every r from 2 to D**: the
    directions after them are the same in all these channels, so they are part of the mean.

    Args:
        moment (Tensor): Second moment of the stream, (D, D), not centred over tokens: best the
            mean over all norms of that of their outputs before the affine part, in which no depth
            outweighs another.

    Returns:
        Tensor: Q, shape (D, D), fp64.
    """
    moment = moment.double()
    plane = _mean_zero(len(moment)).to(moment)
    directions = plane @ torch.linalg.eigh(plane.T @ moment @ plane).eigenvectors.flip(-1)
    return directions @ plane.T + 1 / len(moment)  # the mean stays the mean


def stream_losses(moment: Tensor) -> Tensor:
    """Energy that the best r channels do without, r = 0 … D, fp64 (D + 1,); it ends with 0.

    Args:
        moment (Tensor): As of :func:`stream_basis`.
    """
    plane = _mean_zero(len(moment)).to(moment.device)
    values = torch.linalg.eigvalsh(plane.T @ moment.double() @ plane).clamp(min=0)  # ascending
    tails = torch.cat([values.new_zeros(1), values.cumsum(0)]).flip(0)  # of 0 … D - 1 directions
    return torch.cat([tails[:1], tails])


def _mean_zero(width: int) -> Tensor:
    """An orthonormal basis of the vectors of mean 0, (width, width - 1): Helmert's."""
    columns = torch.arange(1, width, dtype=torch.float64)
    basis = torch.ones(width, width - 1, dtype=torch.float64).triu()
    basis[1:].diagonal().copy_(-columns)
    return basis / (columns * (columns + 1)).sqrt()
