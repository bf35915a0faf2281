"""Closed-form weights of a layer that reads only what is left of its units.

Every refit is one ridge regression towards a prior. A consumer reads new inputs h' in place of
the old ones and should reproduce the targets y:

    W' = argmin  E ||W' h' + b' - y||^2 + rho ||W' - W0||^2
       = W0 + (cov(y, h') - W0 cov(h')) (cov(h') + rho I)^-1,    b' = E y - W' E h'

At W0 the ridge costs nothing, so **the refit's error is never above that of the prior with its
best bias, for any rho**. The prior is plain selection, or the weights from before: directions
without data keep their old weights. The usual ``W' = W A`` is this regression with ``y = W h`` and
the prior W[:, K]. Its A has ``C[:, K] (C[K, K] + rho I)^-1`` in the rows of the removed units, and
the identity in those of the kept units: a layer that keeps all units does not change.

Shapes: d old units, k new ones, m outputs; ``*batch`` independent problems.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .moments import Moments
from .pivots import others, ridge, solve_psd

Size = int | Sequence[int]


def refit(weight: Tensor, bias: Tensor | None, covariance: Tensor, mean: Tensor, kept: Tensor,
          rho: float = 1e-3) -> tuple[Tensor, Tensor]:
    """Weights of a consumer that reads only some of its units.

    Removed units are replaced by their best linear prediction from the kept ones, and the bias
    absorbs the means. Nothing is lost where removed units depend linearly on kept ones (rho 0).

    Args:
        weight (Tensor): W, (m, d).
        bias (Tensor, optional): b, (m,).
        covariance (Tensor): C of the units, (d, d).
        mean (Tensor): mu of the units, (d,).
        kept (Tensor): Indices of the kept units, (k,).
        rho (float): See :func:`~mmkcr.functional.pivots.ridge`. Defaults to 1e-3.

    Returns:
        tuple[Tensor, Tensor]: W' (m, k) and b' (m,), of the weight's dtype and device. There is a
        bias even if there was none: the removed units' mean has no other place.
    """
    covariance, mean = covariance.double(), mean.to(covariance.device, torch.float64)
    kept = kept.to(covariance.device)
    old, rest = weight.to(covariance), others(kept, len(covariance))
    given = covariance[kept][:, kept]
    # W[:, R] C[R, K] (m, k): covariance of what the removed units R contributed, and kept units
    lost = old[:, rest] @ covariance[rest][:, kept]
    new = old[:, kept] + _solve_right(lost, given, ridge(covariance, rho))
    change = old @ mean - new @ mean[kept]
    bias = change if bias is None else bias.to(change) + change
    return new.to(weight), bias.to(weight)


def refit_output(moments: Moments, prior: Tensor, rho: float = 1e-3,
                 biased: bool = True) -> tuple[Tensor, Tensor]:
    """Weights that map new inputs closest to given targets, such as the dense layer's outputs.

    Args:
        moments (Moments): Of the new inputs, (*batch, k), with the targets, (*batch, m).
        prior (Tensor): W0, (*batch, m, k): the old weights of the inputs that are left.
        rho (float): See :func:`~mmkcr.functional.pivots.ridge`. Defaults to 1e-3.
        biased (bool): If False, moments about 0 are used, and b' is 0. Defaults to True.

    Returns:
        tuple[Tensor, Tensor]: W' and b' (*batch, m), of the prior's dtype and device.
    """
    covariance, cross = moments.covariance, moments.cross_covariance
    if not biased:  # moments about 0: E h h^T (k, k) and E y h^T (m, k)
        covariance = moments.second_moment
        cross = cross + moments.target_mean.unsqueeze(-1) * moments.mean.unsqueeze(-2)
    start = prior.to(cross)
    new = start + _solve_right(cross - start @ covariance, covariance, ridge(covariance, rho))
    bias = moments.target_mean - (new @ moments.mean.unsqueeze(-1)).squeeze(-1)
    return new.to(prior), (bias if biased else torch.zeros_like(bias)).to(prior)


def patches(maps: Tensor, kernel_size: Size, stride: Size = 1, padding: Size = 0,
            dilation: Size = 1) -> Tensor:
    """The patches of maps (B, C, H, W) that a convolution multiplies by its kernels.

    Flattened, they are rows for :class:`Moments`, with the taps of a channel side by side: a unit
    of ``pivot_order(..., groups=kh * kw)`` is an input channel. Arguments are those of
    ``nn.Conv2d`` with zero padding. The result, (B, rows, columns, C, kh, kw), is a view: nothing
    is computed or kept but the padded inputs.
    """
    (kh, kw), (sh, sw), (ph, pw), (dh, dw) = (
        (size, size) if isinstance(size, int) else tuple(size)
        for size in (kernel_size, stride, padding, dilation))
    maps = F.pad(maps, (pw, pw, ph, ph))
    # (B, C, H, W) -> (B, C, rows, W, kh) -> (B, C, rows, columns, kh, kw)
    maps = maps.unfold(2, dh * (kh - 1) + 1, sh)[..., ::dh]
    maps = maps.unfold(3, dw * (kw - 1) + 1, sw)[..., ::dw]
    return maps.permute(0, 2, 3, 1, 4, 5)


def _solve_right(right: Tensor, matrix: Tensor, noise: Tensor) -> Tensor:
    """``right (matrix + noise I)^-1`` of right (*batch, m, k) and symmetric (*batch, k, k)."""
    matrix = matrix.clone()
    matrix.diagonal(dim1=-2, dim2=-1).add_(noise.unsqueeze(-1))
    return solve_psd(matrix, right.mT).mT
