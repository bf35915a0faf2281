"""Closed-form weights of a layer that reads fewer units than before.

Every refit is one ridge regression towards a prior. A consumer reads new inputs h' in place of
the old ones and should reproduce the targets y:

    W' = argmin  E ||W' h' + b' - y||^2 + rho ||(W' - W0) D||^2,  D^2 = diag(cov(h'))
       = W0 + (cov(y, h') - W0 cov(h')) (cov(h') + rho D^2)^-1,    b' = E y - W' E h'

D are the units' deviations: a unit in another scale, as a massive activation, changes nothing. At
W0 the ridge costs nothing, so **the refit's error is never above that of the prior with its
best bias, for any rho**. The prior is plain selection, or the weights from before: directions
without data keep their old weights. The usual ``W' = W A`` is this regression with ``y = W h`` and
the prior W[:, K]. Its A has ``C[:, K] (C[K, K] + rho D^2)^-1`` in the rows of the removed units,
and the identity in those of the kept units: a layer that keeps all units does not change.

*Which rho.* A refit on some images serves others, and the less it saw, the more it must shrink.
With moments in groups of whole images, each rho is judged by the error on a group that the refit
has not seen, from the moments alone (:func:`choose_ridge`).

Shapes: d old units, k new ones, m outputs; ``*batch`` independent problems.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .moments import Moments
from .pivots import others, ridge, solve_psd

Size = int | Sequence[int]

RIDGES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1., 3.)
"""Relative ridges that :func:`choose_ridge` compares."""


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
    new = old[:, kept] + _solve_right(lost, given, ridge(covariance, rho)[kept])
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
    start = prior.to(moments.mean)
    covariance, missing = _scatter_about(moments, start, moments if biased else None)
    new = start + _solve_right(missing, covariance, ridge(covariance, rho))
    bias = moments.target_mean - (new @ moments.mean.unsqueeze(-1)).squeeze(-1)
    return new.to(prior), (bias if biased else torch.zeros_like(bias)).to(prior)


def choose_ridge(groups: Sequence[Moments], prior: Tensor, biased: bool = True) -> float:
    """The ridge of :data:`RIDGES` that errs least on groups which its refits have not seen.

    Each group in turn is left out of a refit to all others. Its errors are summed over the groups.

    Args:
        groups (Sequence[Moments]): Of the rows of two or more disjoint groups of images, with
            targets, as in :func:`refit_output`, (k,) and (m,).
        prior (Tensor): W0, (m, k).
        biased (bool): As in :func:`refit_output`. Defaults to True.

    Returns:
        float: One of the ridges.

    Raises:
        ValueError: There are fewer than two groups.
    """
    if len(groups) < 2:
        raise ValueError(f'expected two or more groups to choose a ridge by, found {len(groups)}')
    start = prior.to(groups[0].mean)
    errors = dict.fromkeys(RIDGES, 0.)
    for place, left_out in enumerate(groups):
        seen = Moments.union([*groups[:place], *groups[place + 1:]])
        about = seen if biased else None
        covariance, missing = _scatter_about(seen, start, about)
        spread, due = _scatter_about(left_out, start, about)
        noise = ridge(covariance, 1.)
        for rho in RIDGES:
            change = _solve_right(missing, covariance, rho * noise)
            # E ||(W0 + change) h + b - y||^2 less its value at W0
            error = float((change * (change @ spread - 2 * due)).sum())
            errors[rho] += left_out.count * error
    return min(RIDGES, key=errors.__getitem__)


def _scatter_about(moments: Moments, start: Tensor, about: Moments | None) -> tuple[Tensor, Tensor]:
    """Second moments of the inputs, and of the errors of W0 with the inputs.

    They are ``E h h^T``, (*batch, k, k), and ``E (y - W0 h) h^T``, (*batch, m, k). Both are about
    the means of ``about``, which a bias takes away, or about 0.
    """
    covariance, cross = moments.covariance, moments.cross_covariance
    if about is not moments:
        step, target_step = moments.mean, moments.target_mean
        if about is not None:
            step, target_step = step - about.mean, target_step - about.target_mean
        covariance = covariance + step.unsqueeze(-1) * step.unsqueeze(-2)
        cross = cross + target_step.unsqueeze(-1) * step.unsqueeze(-2)
    return covariance, cross - start @ covariance


def patches(maps: Tensor, kernel_size: Size, stride: Size = 1, padding: Size = 0,
            dilation: Size = 1) -> Tensor:
    """The patches of maps (B, C, H, W) that a convolution multiplies by its kernels.

    Flattened, they are rows for :class:`Moments`, with the taps of a channel side by side: a unit
    of ``pivot_order(..., groups=kh * kw)`` is an input channel.

    Args:
        maps (Tensor): (B, C, H, W).
        kernel_size, stride, padding, dilation (int | tuple[int, int]): Of the convolution, which
            pads with zeros. Default to 1, 0 and 1.

    Returns:
        Tensor: (B, rows, columns, C, kh, kw), a view: the padded inputs alone are kept.
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
    """``right (matrix + diag(noise))^-1`` of right (*batch, m, k), symmetric (*batch, k, k)."""
    matrix = matrix.clone()
    matrix.diagonal(dim1=-2, dim2=-1).add_(noise)
    return solve_psd(matrix, right.mT).mT
