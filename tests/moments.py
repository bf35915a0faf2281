"""Moments of rows in memory, and what a choice of units loses: for tests of the mathematics."""

from torch import Tensor

from mmkcr.functional.moments import Moments
from mmkcr.functional.pivots import others, ridge, solve_psd


def gram_matrix(*weights: Tensor) -> Tensor:
    """``sum_i W_i^T W_i`` (d, d) in fp64 of consumers W_i (m_i, d) of the same units.

    A factor between a consumer and the residual stream, such as a layer scale, must already be
    multiplied into the consumer's rows.
    """
    return sum(weight.double().T @ weight.double() for weight in weights)


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
    ridged = given + ridge(covariance, rho)[kept].diag()
    shares = solve_psd(ridged, covariance[kept][:, rest])  # A[rest]^T, (k, d - k)
    cross = shares.T @ covariance[kept][:, rest]
    # (I - A) C (I - A)^T of the removed channels; A copies the kept ones, whose rows are 0
    left = covariance[rest][:, rest] - cross - cross.T + shares.T @ given @ shares
    return float((gram[rest][:, rest] * left).sum().clamp(min=0))


def moments_of(features: Tensor, targets: Tensor | None = None) -> Moments:
    """Moments of rows that are held in memory.

    Args:
        features (Tensor): Shape (n, d).
        targets (Tensor, optional): Shape (n, p).
    """
    width = 0 if targets is None else targets.shape[-1]
    return Moments(features.shape[-1], width, device=features.device).add(features, targets)
