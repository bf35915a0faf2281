"""Bases of a residual stream whose first channels span the best subspace (SPEC 9).

If every layer norm of a stream is followed by linear maps, the stream may be rotated by any
orthogonal Q with ``Q^T 1 = 1``: ``LN(Q^T x) = Q^T LN(x)``, apart from the affine part, which folds
into the maps. The network's function does not change. A narrower stream keeps the first r
channels. A norm over these subtracts their own mean, so they must hold the best r - 1 directions
of mean 0, whatever their mean is. Helmert's matrix gives a basis that does so for every r at once.
"""

import torch
from torch import Tensor


def stream_basis(moment: Tensor) -> Tensor:
    """An orthogonal Q, ``Q^T 1 = 1``, whose first channels hold the best directions.

    The best of the D - 1 directions of mean 0 are those of the largest eigenvalues. The first r
    channels of ``Q^T x``, minus their mean, hold the best r - 1, **for every r from 2 to D**: each
    later direction adds the same value to all r channels, so it is part of their mean.

    Args:
        moment (Tensor): Second moment of the stream, (D, D), not centred over tokens. The best
            choice is the mean, over all norms, of the second moment of their outputs before the
            affine part: then no depth outweighs another.

    Returns:
        Tensor: Q, shape (D, D), fp64.
    """
    moment = moment.double()
    plane = _mean_zero(len(moment)).to(moment)
    # (D, D - 1): directions of mean 0, by descending eigenvalue
    directions = plane @ torch.linalg.eigh(plane.T @ moment @ plane).eigenvectors.flip(-1)
    # Q maps Helmert's j-th vector to the j-th direction; the term 1 1^T / D maps 1 to 1
    return directions @ plane.T + 1 / len(moment)


def stream_losses(moment: Tensor) -> Tensor:
    """Energy outside the best r channels, for r = 0 … D, fp64 (D + 1,); the last is 0.

    Args:
        moment (Tensor): As in :func:`stream_basis`.
    """
    plane = _mean_zero(len(moment)).to(moment.device)
    values = torch.linalg.eigvalsh(plane.T @ moment.double() @ plane).clamp(min=0)  # ascending
    tails = torch.cat([values.new_zeros(1), values.cumsum(0)]).flip(0)  # of 0 … D - 1 directions
    return torch.cat([tails[:1], tails])  # r channels hold r - 1 directions, and 0 or 1 hold none


def _mean_zero(width: int) -> Tensor:
    """Helmert's orthonormal basis of the vectors of mean 0, shape (width, width - 1)."""
    columns = torch.arange(1, width, dtype=torch.float64)
    # column j = 1, 2, …: j ones, then -j, then zeros, over sqrt(j (j + 1))
    basis = torch.ones(width, width - 1, dtype=torch.float64).triu()
    basis[1:].diagonal().copy_(-columns)
    return basis / (columns * (columns + 1)).sqrt()
