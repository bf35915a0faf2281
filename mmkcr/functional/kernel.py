"""Kernel complexity of a set of features, exact and streaming (KCR section 3.2).

The kernel of the KCR paper is linear: ``K = F F^T`` for features ``F`` (n, d). So the non-zero
eigenvalues of ``K / n`` are the eigenvalues of the second moment ``S = F^T F / n`` (d, d), and the
Nystrom
eigenvectors from landmarks ``F_I`` are ``F V``, where V are the eigenvectors of ``F_I^T F_I``.
Nothing here is larger than (d, d), whatever n and m are. Everything is computed in fp64.

Shapes: n samples, m landmarks, d feature width, r rank of the truncation.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .moments import CHUNK

DEFAULT_LANDMARKS = 50000
"""m, "throughout all the experiments" of KCR v2 (section 4.1)."""


class MomentAccumulator:
    """Sum of ``f f^T`` over a stream of features, on all ranks.

    Args:
        num_features (int): Width d of the features.
        device (str | torch.device): Of the sum. Defaults to ``'cpu'``.
    """

    def __init__(self, num_features: int, device: str | torch.device = 'cpu') -> None:
        self.total = torch.zeros(num_features, num_features, dtype=torch.float64, device=device)
        self.count = 0

    @torch.no_grad()
    def add(self, features: Tensor) -> 'MomentAccumulator':
        """Add a batch (B, d) of any floating dtype and device; returns itself.

        Raises:
            ValueError: Features of another shape.
        """
        if features.ndim != 2 or features.shape[1] != len(self.total):
            raise ValueError(f'expected features of shape (B, {len(self.total)}), found '
                             f'`{tuple(features.shape)}` in MomentAccumulator.add')
        for chunk in features.split(CHUNK):
            chunk = chunk.to(self.total)
            self.total.addmm_(chunk.T, chunk)
        self.count += len(features)
        return self

    def all_reduce(self) -> 'MomentAccumulator':
        """Sums over ranks, in place: afterwards all ranks hold the same sums, bit for bit."""
        from mmengine.dist import all_reduce
        count = self.total.new_tensor([float(self.count)])
        all_reduce(self.total)
        all_reduce(count)
        self.count = round(float(count))
        return self

    def moment(self) -> Tensor:
        """``S = F^T F / n`` (d, d), fp64.

        Raises:
            ValueError: There are no samples, or features that are not finite.
        """
        if not self.count or not torch.isfinite(self.total).all():
            what = 'nan` or `inf' if self.count else '0'
            raise ValueError('expected finite features of at least one sample, found '
                             f'`{what}` in the second-moment accumulator')
        return self.total / self.count


def moment_of(features: Tensor) -> Tensor:
    """Second moment ``F^T F / n`` (d, d) in fp64 of features (n, d) held in memory."""
    return MomentAccumulator(features.shape[1], features.device).add(features).moment()


def truncation_rank(n: int, d: int, ratio: float) -> int:
    """Rank of the truncation, ``ceil(ratio * min(n, d))`` (KCR section 3.2).

    Args:
        n (int): Number of samples.
        d (int): Width of the features.
        ratio (float): gamma0, in (0, 1].

    Raises:
        ValueError: A ratio out of range.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f'expected a rank ratio in (0, 1], found `{ratio}`: the rank would '
                         f'be outside 1 to min(n, d) = `{min(n, d)}`')
    # 1e-9: a product that should be an integer may be rounded up (0.07 * 100 > 7)
    return max(1, math.ceil(ratio * min(n, d) - 1e-9))


def spectrum(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (d,) in descending order, not below zero, and eigenvectors (d, d), fp64.

    The sign of an eigenvector is fixed: its entry of largest magnitude is positive. So two
    runs whose sums differ in the last bit get the same signs.
    """
    values, vectors = torch.linalg.eigh(moment.double())
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)  # `eigh` sorts ascending
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))  # (1, d)
    return values, vectors * torch.where(largest < 0, -1.0, 1.0)


def leading_basis(moment: Tensor, rank: int) -> Tensor:
    """The r leading eigenvectors (d, r) of a second moment (d, d), orthonormal, fp64.

    The scale of the moment does not matter. The moment of the landmarks gives the V of fact 1.
    """
    return spectrum(moment)[1][:, :rank]


def orthonormalise(matrix: Tensor) -> Tensor:
    """``M (M^T M)^{-1/2}`` of M (n, r): the orthonormal columns nearest to M's (fact 2)."""
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    return u @ vt


def tails(energies: Tensor) -> Tensor:
    """Tail sums after h leading terms (*batch, d): ``sum_{i>h} energies_i``, (*batch, d + 1)."""
    # summed from the smallest term on, so that small tails keep their digits
    return F.pad(energies.flip(-1).cumsum(-1).flip(-1), (0, 1))


def tnn(eigenvalues: Tensor, rank: int) -> Tensor:
    """Truncated nuclear norm ``sum_{i>r} lambda_i`` from eigenvalues (d,) in descending order."""
    return tails(eigenvalues)[min(rank, len(eigenvalues))]


def approximate_tnn(moment: Tensor, landmark_moment: Tensor, form: str = 'projection') -> Tensor:
    """Approximate TNN at every truncation h = 0 … d from a landmark basis (KCR section 3.2).

    'projection' is ``tr S - tr(V_h^T S V_h)``, which the loss minimises. 'sample' is the
    paper's ``tr K_n - tr(U_h^T K_n U_h)`` with ``U_h = F V_h`` made orthonormal. The bases
    of both forms nest (those of the second by Gram-Schmidt, a QR decomposition). So one
    cumulative sum gives all d + 1 values, in fp64. Both are upper bounds of the TNN (Ky Fan).

    Args:
        moment (Tensor): ``F^T F / n`` (d, d) of all samples.
        landmark_moment (Tensor): ``F_I^T F_I`` (d, d) of the landmarks, any scale.
        form (str): See above. Defaults to 'projection'.

    Raises:
        ValueError: Another form.
    """
    basis = spectrum(landmark_moment)[1]
    moment = moment.double()
    if form == 'sample':
        # F = sqrt(n) P S^(1/2) with P^T P = I, and P^T K_n P = S: so P need not be formed, and
        # the columns of F V are represented by those of S^(1/2) V
        values, vectors = spectrum(moment)
        basis = torch.linalg.qr(vectors * values.sqrt() @ (vectors.T @ basis))[0]
    elif form != 'projection':
        raise ValueError(f"expected form 'projection' or 'sample', found `{form}` in "
                         'approximate_tnn')
    return tails(((moment @ basis) * basis).sum(0).clamp(min=0))  # energies v_i^T S v_i, (d,)


def kernel_complexity(tail_sums: Tensor, n: int) -> tuple[float, int]:
    """KC, or A-KC: ``min_h h / n + sqrt(tail_h / n)``, and the h that attains it.

    The h are 0 … min(n, d) (KCR sections 3.2 and 4.6, with r0 = min(n, d)).

    Args:
        tail_sums (Tensor): (d + 1,) TNN at every h: ``tails(eigenvalues)`` for KC,
            :func:`approximate_tnn` for A-KC.
        n (int): Number of samples.
    """
    tail_sums = tail_sums[:n + 1].double()
    h = torch.arange(len(tail_sums), dtype=torch.float64, device=tail_sums.device)
    values = h / n + (tail_sums / n).sqrt()
    best = int(values.argmin())
    return float(values[best]), best
