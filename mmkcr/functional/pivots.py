"""Which units of a site to keep: a greedy order and its error curve.

A consumer reads units h with covariance C through W. A ridge of rho means that every unit also
carries independent noise, of rho times its own variance: ``C' = C + rho diag(C)``. The units K are
kept, and the others are reconstructed from them. The squared error of the outputs is then

    error(K) = tr(W (C' - C'[:, K] C'[K, K]^-1 C'[K, :]) W^T) = tr(G R),   G = W^T W,

where R is the Schur complement of the kept units. The error is 0 if all units are kept, never
grows when a unit is added, and bounds the error without the noise from above.

Each step drops the unit that adds least: with ``P = C'[K, K]^-1`` and G the Gram matrix of the
refitted weights, unit j adds ``G_jj / P_jj``. It is Optimal Brain Surgeon with a refit after every
step. All steps together cost O(d^3) and O(d^2) memory (:mod:`mmkcr.functional.sweep`). For units of
several channels the scalars become blocks.

Shapes: L consumers that share the units, d channels, n units of s channels.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .kernel import tails
from .sweep import Sweep

MIN_RHO = 1e-8
"""Least relative ridge of an order: gains of dependent units are exact to eps / MIN_RHO."""
LEAST_VARIANCE = 1e-8
"""Of a unit, relative to the median unit: a smaller one is rounding of a constant."""


def ridge(covariance: Tensor, rho: float) -> Tensor:
    """Absolute ridge of every unit: ``rho`` times its variance.

    So units count as if each had been divided by its deviation, and a massive one spoils nothing.

    Args:
        covariance (Tensor): C, (*batch, d, d).
        rho (float): Relative ridge, at least 0.

    Returns:
        Tensor: Ridge to add to the diagonal of C, (*batch, d), fp64. A variance counts as at least
        :data:`LEAST_VARIANCE` of the median one. If most units are constant, the mean takes the
        place of the median, and where all are, 1: the ridge is 0 for rho 0 alone.

    Raises:
        ValueError: ``rho`` is negative or not finite.
    """
    if not 0 <= rho < float('inf'):
        raise ValueError(f'expected a finite `rho` that is not negative, found `{rho}`')
    variances = covariance.double().diagonal(dim1=-2, dim2=-1)
    mean, median = variances.mean(-1, keepdim=True), variances.median(-1, keepdim=True).values
    typical = torch.where(median > 0, median, torch.where(mean > 0, mean, 1.))
    return rho * torch.maximum(variances, LEAST_VARIANCE * typical)


class UnitOrder(NamedTuple):
    """Nested choices of units: the first k of the order, for every k.

    Args:
        order (Tensor): Units, the most important first, int64 (n,).
        errors (Tensor): Error with the first k units, k = 0 … n, fp64 (n + 1,); it falls to 0.
    """

    order: Tensor
    errors: Tensor


def pivot_order(covariance: Tensor, gram: Tensor, groups: int = 1, rho: float = 1e-3,
                extra: Tensor | None = None) -> UnitOrder:
    """Order units, on C's device, by the error that the consumers' outputs would have without them.

    Args:
        covariance (Tensor): C of the units' channels, shape (d, d); or (L, d, d), one for each of
            L consumers, whose errors are summed.
        gram (Tensor): G of the consumers, shape as C.
        groups (int): s, the number of contiguous channels that make a unit. Defaults to 1.
        rho (float): Ridge, see :func:`ridge`; at least :data:`MIN_RHO`. Defaults to 1e-3.
        extra (Tensor, optional): Additional error of losing a unit, (n,). Defaults to none.
    """
    if covariance.shape[-1] % groups:
        raise ValueError(f'expected channels that are units of {groups}, found '
                         f'{covariance.shape[-1]}')
    noisy = covariance.double().reshape(-1, *covariance.shape[-2:]).clone()
    gram = gram.to(noisy).reshape_as(noisy)
    if not (torch.isfinite(noisy).all() and torch.isfinite(gram).all()):
        raise ValueError('expected finite values in the covariance and the Gram matrix of the '
                         'units, found `nan` or `inf`')
    # (L, d) on the diagonals: C + rho diag(C)
    noisy.diagonal(dim1=-2, dim2=-1).add_(ridge(noisy, max(rho, MIN_RHO)))
    # units of any scale: C / c and c G have the same errors, for powers of two to the last digit
    scale = noisy.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
    scale = scale / scale.frexp().mantissa
    noisy, gram = noisy / scale, gram * scale
    extra = noisy.new_zeros(noisy.shape[-1] // groups) if extra is None else extra.to(noisy)
    units, changes = Sweep(noisy, gram, groups, extra).run()
    # the unit that was dropped last is the most important; error(k) sums the changes from k on
    return UnitOrder(torch.tensor(units[::-1], device=noisy.device), tails(changes.flip(0)))


def solve_psd(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve ``matrix X = right``; the least-squares X of least norm if the matrix is singular.

    The matrix is positive semidefinite, (*batch, k, k), fp64; right (*batch, k, m) is in its range.
    """
    factor, failed = torch.linalg.cholesky_ex(matrix)
    diagonal = factor.diagonal(dim1=-2, dim2=-1)
    # a pivot below 1e-12 of its diagonal entry is mostly rounding: the factor is useless, even if
    # the Cholesky factorisation did not fail
    poor = (diagonal.square() < 1e-12 * matrix.diagonal(dim1=-2, dim2=-1)).any(-1) | (failed > 0)
    if not poor.any():
        return torch.cholesky_solve(right, factor)
    values, vectors = torch.linalg.eigh(matrix)
    floor = 1e-13 * values[..., -1:].clamp(min=0)  # pseudo-inverse: smaller eigenvalues count as 0
    inverse = torch.where(values > floor, 1 / values, 0.)
    return vectors @ (inverse.unsqueeze(-1) * (vectors.mT @ right))


def others(kept: Tensor, width: int) -> Tensor:
    """The units of 0 … ``width`` - 1 that are not in ``kept``, ascending, int64."""
    mask = torch.ones(width, dtype=torch.bool, device=kept.device)
    mask[kept] = False
    return mask.nonzero()[:, 0]
