"""Which units of a site to keep: greedy orders and their error curves.

A consumer reads units h with covariance C through W. A ridge of rho means that every unit also
carries independent noise of variance rho: ``C' = C + rho I``. The units K are kept, and the others
are reconstructed from them. The squared error of the outputs is then

    error(K) = tr(W (C' - C'[:, K] C'[K, K]^-1 C'[K, :]) W^T) = tr(G R),   G = W^T W,

where R is the Schur complement of the kept units. The error is 0 if all units are kept, never
grows when a unit is added, and bounds the error without the noise from above
(:func:`reconstruction_error`).

*Forward selection* adds the unit that removes most of the error: with ``Q = R G R`` unit j removes
``Q_jj / R_jj``. It is pivoted Cholesky, weighted by G.
*Backward elimination* drops the unit that adds least: with ``P = C'[K, K]^-1`` and G the Gram
matrix of the refitted weights, unit j adds ``G_jj / P_jj``. It is Optimal Brain Surgeon with a
refit after every step. Both look at all units in every step. They cost O(d^3) in total and O(d^2)
memory (:mod:`mmkcr.functional.sweep`). For units of several channels the scalars become blocks.

Shapes: L consumers that share the units, d channels, n units of s channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sweep import Sweep, after_choosing, after_dropping

MIN_RHO = 1e-8
"""Least relative ridge of an order: gains of dependent units are exact to eps / MIN_RHO."""

Groups = int | Sequence[Sequence[int]] | None


def gram_matrix(*weights: Tensor) -> Tensor:
    """``sum_i W_i^T W_i`` (d, d) in fp64 of consumers W_i (m_i, d) of the same units.

    A factor between a consumer and the residual stream, such as a layer scale, must already be
    multiplied into the consumer's rows.
    """
    return sum(weight.double().T @ weight.double() for weight in weights)


def ridge(covariance: Tensor, rho: float) -> Tensor:
    """Absolute ridge: ``rho`` times the mean of the diagonal, shape (*batch,), fp64.

    Where all variances are 0, the mean counts as 1, so that the ridge is not 0.

    Args:
        covariance (Tensor): Shape (*batch, d, d).
        rho (float): Relative to the mean variance, not negative.

    Raises:
        ValueError: ``rho`` is negative or not finite.
    """
    if not 0 <= rho < float('inf'):
        raise ValueError(f'expected a finite `rho` that is not negative, found `{rho}`')
    mean = covariance.double().diagonal(dim1=-2, dim2=-1).mean(-1)
    return rho * torch.where(mean > 0, mean, 1.)


@dataclass(frozen=True)
class UnitOrder:
    """Nested choices of units: the first k of the order, for every k.

    Attributes:
        order (Tensor): Units, the most important first, int64 (n,).
        errors (Tensor): Error with the first k units kept, k = 0 … n, fp64 (n + 1,). It never
            grows with k and ends with 0.
        groups (tuple[Tensor, ...]): Channels of every unit, int64.
    """

    order: Tensor
    errors: Tensor
    groups: tuple[Tensor, ...]

    def kept(self, count: int) -> Tensor:
        """Channels of the first ``count`` units, ascending, int64."""
        if not 0 <= count <= len(self.order):
            raise ValueError(f'expected a count of units within 0 and {len(self.order)}, found '
                             f'`{count}`')
        chosen = [self.groups[unit] for unit in self.order[:count].tolist()]
        return torch.cat(chosen).sort().values if chosen else self.order[:0]


def pivot_order(covariance: Tensor, gram: Tensor, groups: Groups = None,
                fixed: Sequence[int] = (), rho: float = 1e-3, extra: Tensor | None = None,
                method: str = 'backward') -> UnitOrder:
    """Order units by the error that the consumers' outputs would have without them.

    Args:
        covariance (Tensor): C of the units' channels, shape (d, d); or (L, d, d), one for each of
            L consumers, each with its own view of the same units. Their errors are summed.
        gram (Tensor): G of the consumers, shape as C. Its scale is the consumer's weight in the
            sum.
        groups (int | Sequence[Sequence[int]], optional): Channels that make a unit: a number of
            contiguous channels (the last unit may have fewer), or one list per unit, together a
            partition of the channels. Defaults to None: every channel is a unit.
        fixed (Sequence[int]): Units that come first, in this order. Defaults to ().
        rho (float): Ridge, relative to the mean variance of every consumer. Values below
            :data:`MIN_RHO` are raised to it. Defaults to 1e-3.
        extra (Tensor, optional): Additional error of losing a unit, shape (n,), not negative.
            Defaults to None.
        method (str): 'forward' or 'backward'. Defaults to 'backward'.

    Returns:
        UnitOrder: On the device of C.

    Raises:
        ValueError: Shapes do not fit, groups are no partition, or values are not finite.
    """
    if method not in ('forward', 'backward'):
        raise ValueError(f"expected method 'forward' or 'backward', found `{method}`")
    noisy, gram = _check(covariance, gram, rho)
    members = _members(groups, noisy.shape[-1])
    fixed = _check_fixed(fixed, len(members))
    extra = _check_extra(extra, len(members)).to(noisy)
    forward = method == 'forward'
    sweep = Sweep(after_choosing(noisy, gram) if forward else after_dropping(noisy, gram),
                  members, extra, -1. if forward else 1.)
    units, changes = sweep.run(fixed)
    if not forward:  # the unit that was dropped last is the most important
        units, changes = units[::-1], changes.flip(0)
    # error(k) is the sum of the changes from unit k on; summed from the end, so that small errors
    # keep their digits
    errors = torch.cat([changes.flip(0).cumsum(0).flip(0), changes.new_zeros(1)])
    groups = tuple(torch.tensor(group, device=noisy.device) for group in members)
    return UnitOrder(torch.tensor(units, device=noisy.device), errors, groups)


def reconstruction_error(covariance: Tensor, gram: Tensor, kept: Tensor,
                         rho: float = 1e-3) -> float:
    """Summed squared error of the outputs when all channels are reconstructed from ``kept``.

    That is ``tr(W (I - A) C (I - A)^T W^T)`` with the A of :func:`mmkcr.functional.refit.refit`.
    It is the error on the calibration tokens, without the noise that the error curve of an order
    includes.

    Args:
        covariance (Tensor): C, shape (d, d).
        gram (Tensor): G, shape (d, d).
        kept (Tensor): Indices of the kept channels, (k,).
        rho (float): Relative ridge. Defaults to 1e-3.
    """
    covariance, gram = covariance.double(), gram.double()
    rest = others(kept, len(covariance))
    given = covariance[kept][:, kept]
    ridged = given + ridge(covariance, rho) * torch.eye(len(kept)).to(given)
    shares = solve_psd(ridged, covariance[kept][:, rest])  # A[rest]^T, (k, d - k)
    cross = shares.T @ covariance[kept][:, rest]
    # (I - A) C (I - A)^T of the removed channels; A copies the kept ones, whose rows are 0
    left = covariance[rest][:, rest] - cross - cross.T + shares.T @ given @ shares
    return float((gram[rest][:, rest] * left).sum().clamp(min=0))


def solve_psd(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve ``matrix X = right``; the least-squares X of least norm if the matrix is singular.

    Args:
        matrix (Tensor): Positive semidefinite, shape (*batch, k, k), fp64.
        right (Tensor): Shape (*batch, k, m), in the range of the matrix.
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
    """Channels of ``width`` that are not in ``kept``, ascending, int64."""
    mask = torch.ones(width, dtype=torch.bool, device=kept.device)
    mask[kept] = False
    return mask.nonzero()[:, 0]


def _check(covariance: Tensor, gram: Tensor, rho: float) -> tuple[Tensor, Tensor]:
    """``C + rho I`` and G, both (L, d, d) and fp64."""
    if covariance.shape != gram.shape or covariance.ndim not in (2, 3) or \
            covariance.shape[-1] != covariance.shape[-2] or covariance.shape[-1] == 0:
        raise ValueError('expected a covariance and a Gram matrix of one shape, (d, d) or '
                         f'(L, d, d), found {tuple(covariance.shape)} and {tuple(gram.shape)}')
    covariance = covariance.double().reshape(-1, *covariance.shape[-2:])
    gram = gram.to(covariance).reshape_as(covariance)
    if not (torch.isfinite(covariance).all() and torch.isfinite(gram).all()):
        raise ValueError('expected finite values in the covariance and the Gram matrix of the '
                         'units, found `nan` or `inf`')
    noise = torch.maximum(ridge(covariance, rho), ridge(covariance, MIN_RHO))  # (L,)
    noisy = covariance.clone()
    noisy.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(-1))
    return noisy, gram


def _members(groups: Groups, width: int) -> list[list[int]]:
    """Channels of every unit."""
    if groups is None or isinstance(groups, int):
        size = groups or 1
        return [list(range(start, min(start + size, width))) for start in range(0, width, size)]
    members = [[int(channel) for channel in group] for group in groups]
    if not all(members) or sorted(sum(members, [])) != list(range(width)):
        raise ValueError(f'expected groups that are a partition of the {width} channels, found '
                         f'{len(members)} groups of {sum(map(len, members))} channels')
    return members


def _check_fixed(fixed: Sequence[int], n: int) -> list[int]:
    fixed = [int(unit) for unit in fixed]
    if len(set(fixed)) != len(fixed) or not all(0 <= unit < n for unit in fixed):
        raise ValueError(f'expected `fixed` units that are distinct and within 0 and {n - 1}, '
                         f'found {fixed}')
    return fixed


def _check_extra(extra: Tensor | None, n: int) -> Tensor:
    if extra is None:
        return torch.zeros(n, dtype=torch.float64)
    extra = extra.double()
    if extra.shape != (n, ) or not (torch.isfinite(extra) & (extra >= 0)).all():
        raise ValueError(f'expected {n} finite errors that are not negative in `extra`, found '
                         f'shape {tuple(extra.shape)}')
    return extra
