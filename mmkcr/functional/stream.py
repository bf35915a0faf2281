"""The width of a residual stream: one subspace for all its producers and consumers (SPEC 9).

*Selection* works with every norm. :func:`consumers_order` finds the channels by the summed
relative errors of all consumers; each consumer is then refitted by :func:`mmkcr.functional.refit`
on its own (normalised) inputs, or, since a norm over fewer channels has other statistics, by
``refit_output`` on the inputs that the narrower network really has. Producers keep the rows of
the chosen channels.

*Rotation* changes nothing before it truncates, so it can follow the data (PCA). Conditions:

- whatever reads the stream does so through a norm over all of its channels whose affine part,
  and all that follows up to the next linear map, can be folded: the norm is a LayerNorm or an
  RMSNorm before each branch (pre-norm) and its readers are linear;
- whatever writes the stream ends in a linear map (projections, a patch embedding's convolution,
  tables of positions and of class tokens); a layer scale is folded into it;
- nothing acts on single channels of the stream itself (post-norm networks such as Swin V2 and a
  raw stream as output do: use selection, or put a linear map there).

A LayerNorm stays a LayerNorm: centring is folded into the producers, and the rotated stream lies
in the plane of mean 0 of its new channels, where a LayerNorm only divides. That takes one of the
r channels. Patch merging reads several tokens through one norm: rotate each token's part.
"""

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .pivots import Groups, UnitOrder, gram_matrix, pivot_order
from .refit import refit_mixed


def consumers_order(consumers: Sequence[Tuple[Tensor, Tensor]], groups: Groups = None,
                    relative: bool = True, **kwargs: Any) -> UnitOrder:
    """Order channels that several consumers read, each with inputs of its own.

    Args:
        consumers (Sequence[tuple[Tensor, Tensor]]): Weight (m_i, D) and covariance of the inputs
            (D, D) of every consumer.
        groups (int | Sequence[Sequence[int]], optional): As :func:`pivot_order`.
        relative (bool): Whether every consumer's error is divided by the variance of its output.
            Defaults to True.
        **kwargs: Of :func:`pivot_order`.

    Returns:
        UnitOrder: Its errors are the consumers' sum.
    """
    covariances = torch.stack([covariance.double() for _, covariance in consumers])
    grams = torch.stack([gram_matrix(weight).to(covariances) for weight, _ in consumers])
    if relative:
        total = (grams * covariances).sum((-2, -1))
        grams = grams / torch.where(total > 0, total, 1.)[:, None, None]
    return pivot_order(covariances, grams, groups, **kwargs)


@dataclass(frozen=True)
class StreamRotation:
    """A narrower stream ``x' = Q^T x`` and the weights around it.

    Attributes:
        basis (Tensor): Q, shape (D, r), fp64.
        norm (str): 'layer' or 'rms'.
    """

    basis: Tensor
    norm: str

    @property
    def scale(self) -> float:
        """float: ``sqrt(D / r)``: a norm of r channels divides by less than one of D."""
        return (self.basis.shape[0] / self.basis.shape[1])**0.5

    def eps(self, eps: float) -> float:
        """Constant of the norms over r channels for that of the old ones."""
        return eps * self.scale**2

    def producer(self, weight: Tensor, bias: Optional[Tensor] = None
                 ) -> Tuple[Tensor, Optional[Tensor]]:
        """Rotate what writes the stream; tables of tokens (n, D) go in transposed.

        Args:
            weight (Tensor): Shape (D, ...), a linear map's or a convolution's.
            bias (Tensor, optional): Shape (D,).

        Returns:
            tuple[Tensor, Tensor | None]: Shapes (r, ...) and (r,), of the weight's dtype.
        """
        return self._rotate(weight), None if bias is None else self._rotate(bias)

    def _rotate(self, values: Tensor) -> Tensor:
        rotated = self.basis.T @ values.to(self.basis).flatten(1) if values.ndim > 1 else \
            self.basis.T @ values.to(self.basis)
        return rotated.reshape(-1, *values.shape[1:]).to(values)

    def consumer(self, weight: Tensor, bias: Optional[Tensor], norm_weight: Optional[Tensor] = None,
                 norm_bias: Optional[Tensor] = None, covariance: Optional[Tensor] = None,
                 mean: Optional[Tensor] = None, rho: float = 1e-3
                 ) -> Tuple[Tensor, Optional[Tensor]]:
        """Fold a norm's affine part into what reads it, and rotate; the norm's becomes 1 and 0.

        Args:
            weight (Tensor): Of the linear map behind the norm, shape (m, D).
            bias (Tensor, optional): Shape (m,).
            norm_weight (Tensor, optional): Shape (D,). Defaults to ones.
            norm_bias (Tensor, optional): Shape (D,). Defaults to zeros.
            covariance (Tensor, optional): Of the normalised stream before the affine part,
                (D, D). With it (and ``mean``) the weights are refitted for a truncated stream.
            mean (Tensor, optional): Of the same, (D,).
            rho (float): Relative ridge of the refit. Defaults to 1e-3.

        Returns:
            tuple[Tensor, Tensor | None]: Shapes (m, r) and (m,), of the weight's dtype.
        """
        folded = weight.to(self.basis)
        offset = None if bias is None else bias.to(self.basis)
        if norm_bias is not None:
            shift = folded @ norm_bias.to(self.basis)
            offset = shift if offset is None else offset + shift
        if norm_weight is not None:
            folded = folded * norm_weight.to(self.basis)
        new = folded @ self.basis * self.scale
        if covariance is not None:
            new, offset = refit_mixed(folded, offset, covariance.to(self.basis),
                                      mean.to(self.basis), self.basis.T / self.scale, new, rho)
        return new.to(weight), None if offset is None else offset.to(weight)


def stream_rotation(moment: Tensor, width: int, norm: str = 'layer') -> StreamRotation:
    """Principal directions of a residual stream, as channels of a narrower one.

    Exact at full width. Below, weights of consumers are best refitted.

    Args:
        moment (Tensor): Second moment of the stream, not centred over tokens, shape (D, D): best
            the mean over all norms of that of their outputs before the affine part, in which no
            depth outweighs another.
        width (int): r. For 'layer' r - 1 directions are kept, of the D - 1 of mean 0.
        norm (str): 'layer' (LayerNorm) or 'rms' (RMSNorm). Defaults to 'layer'.

    Raises:
        ValueError: The width is out of its range, or the norm is another.
    """
    full, least = len(moment), 2 if norm == 'layer' else 1
    if norm not in ('layer', 'rms') or not least <= width <= full:
        raise ValueError("expected norm 'layer' or 'rms' and a width within "
                         f'{least} and {full}, found `{norm}` and {width}')
    moment = moment.double()
    if norm == 'rms':
        return StreamRotation(_leading(moment, width), norm)
    plane = _mean_zero(full).to(moment)
    directions = plane @ _leading(plane.T @ moment @ plane, width - 1)  # (D, r - 1), mean 0
    return StreamRotation(directions @ _mean_zero(width).to(moment).T, norm)


def _leading(moment: Tensor, count: int) -> Tensor:
    """Eigenvectors of the largest eigenvalues, (d, count)."""
    return torch.linalg.eigh(moment).eigenvectors.flip(-1)[:, :count]


def _mean_zero(width: int) -> Tensor:
    """An orthonormal basis of the vectors of mean 0, (width, width - 1): Helmert's."""
    columns = torch.arange(1, width, dtype=torch.float64)
    basis = torch.ones(width, width - 1, dtype=torch.float64).triu()
    basis[1:].diagonal().copy_(-columns)
    return basis / (columns * (columns + 1)).sqrt()
