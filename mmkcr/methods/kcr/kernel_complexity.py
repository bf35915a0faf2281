"""Kernel complexity reduction: the approximate truncated nuclear norm as a loss."""

import torch
from torch import Tensor

from mmkcr.functional.kernel import leading_basis, moment_of, orthonormalise, truncation_rank
from mmkcr.methods.search.refresh import RefreshedTerm
from mmkcr.models.losses.processes import mean_over_processes
from mmkcr.registry import MODELS


@MODELS.register_module()
class KernelComplexityLoss(RefreshedTerm):
    r"""KCR regulariser (KCR section 3.2, equation 2; docs/kernel_complexity.md).

    The form 'projection' needs only the feature-space basis V (d, r):

    .. math:: \text{KCR}_i = \|(I - V V^\top) F_i\|^2

    It is never negative, its mean over the training set bounds the TNN from above
    (Ky Fan), and its gradient is the objective's with the subspace frozen. The form
    'sample' is the paper's, corrected: with orthonormal ``U = U~ (U~^T U~)^{-1/2}`` (n, r)
    and ``G = F^T U`` of the last refresh,

    .. math:: \text{KCR}_i = \|F_i\|^2 - U_i G^\top F_i

    with the gradient ``2 (F_i - G U_i)`` of ``tr(K_n) - tr(U^T K_n U)``. (The printed form freezes
    the other samples' features in ``[K_n]_{ik}`` and loses half of the second term's gradient.)
    'sample' stores n x r numbers and needs the index of every sample. It is meant for tests and
    ablations on small sets. Both forms agree at a refresh whose landmarks are all n samples.

    All arithmetic is in fp32 (fp64 for fp64 features) with autocast switched off. The
    basis is a buffer of fixed shape, so that checkpoints always load strictly. It is zero
    before the first refresh, and in the columns beyond the rank.

    Args:
        num_features (int): Feature width d.
        rank_ratio (float): gamma0; ``r = ceil(gamma0 min(n, d))``. Defaults to 0.2.
        weight (float): eta, the loss weight. Defaults to 0.2 (v2; v1: 1).
        form (str): 'projection' or 'sample'. Defaults to 'projection'.
        scale_free (bool): Divide by the energy ``sum ||F_i||^2`` of the batch of all processes,
            so that the term does not grow with the features' scale. Defaults to False.
        num_samples (int, optional): n, for 'sample' only, where it is required.

    Attributes:
        needs_indices (bool): Whether ``forward`` needs the samples' indices.
    """

    state, hook, marker = 'a basis', 'NystromRefreshHook', 'basis_rank'

    def __init__(self, num_features: int, rank_ratio: float = 0.2, weight: float = 0.2,
                 form: str = 'projection', scale_free: bool = False,
                 num_samples: int | None = None) -> None:
        super().__init__(num_features)
        if form not in ('projection', 'sample'):
            raise ValueError(f"expected form 'projection' or 'sample', found `{form}` in "
                             'KernelComplexityLoss')
        if (form == 'sample') != (num_samples is not None):
            raise ValueError("expected num_samples with form 'sample' and only there, found "
                             f'`{num_samples}` with form `{form}` in KernelComplexityLoss')
        self.num_samples, self.rank_ratio, self.weight = num_samples, rank_ratio, weight
        self.scale_free, self.needs_indices = scale_free, form == 'sample'
        # the largest rank that a refresh may have; 'projection' does not know n yet
        rank = truncation_rank(num_samples or num_features, num_features, rank_ratio)
        self.register_buffer('basis', torch.zeros(num_features, rank))  # V
        self.register_buffer('basis_rank', torch.zeros((), dtype=torch.long))
        self.register_buffer('basis_epoch', torch.full((), -1, dtype=torch.long))
        if self.needs_indices:
            self.register_buffer('coordinates', torch.zeros(num_samples, rank))  # U
            self.register_buffer('loadings', torch.zeros(num_features, rank))  # G = F^T U

    @property
    def refresh_step(self) -> Tensor:
        """Tensor: As ``basis_epoch``."""
        return self.basis_epoch

    def forward(self, features: Tensor, indices: Tensor | None = None) -> Tensor:
        """Computes the weighted loss of a batch, a scalar in fp32 or fp64.

        Args:
            features (Tensor): (B, d), with gradient.
            indices (Tensor, optional): (B,) positions in the training set, for 'sample'.

        Raises:
            RuntimeError: There is no basis yet.
            ValueError: The features have another width, or indices are missing.
        """
        self.check(features)
        if self.needs_indices and indices is None:
            raise ValueError("expected the samples' indices for form 'sample', found `None` in "
                             'KernelComplexityLoss')
        with torch.autocast(features.device.type, enabled=False):
            features = features if features.dtype == torch.float64 else features.float()
            energy = features.square().sum()
            # sum_i KCR_i over the batch
            if self.needs_indices:
                residual = self._sample(features, indices)
            else:
                basis = self.basis.to(features.dtype)
                residual = (features - (features @ basis) @ basis.T).square().sum()
            mean = residual / len(features)
            if self.scale_free:  # a ratio of sums over the images of all processes
                residual, energy = mean_over_processes(torch.stack([residual, energy]))
            share = residual / energy.clamp(min=torch.finfo(energy.dtype).tiny)
            self._logged = dict(energy_outside=share.detach())  # of the batch's energy
            return self.weight * (share if self.scale_free else mean)

    def _sample(self, features: Tensor, indices: Tensor) -> Tensor:
        coordinates = self.coordinates[indices.to(self.coordinates.device)].to(features.dtype)
        # sum_i U_i G^T F_i with U_i (r,) and G (d, r) constant
        inside = (coordinates * (features @ self.loadings.to(features.dtype))).sum()
        # The value of `inside` with twice its gradient: both factors of U^T F F^T U move.
        return features.square().sum() - (2 * inside - inside.detach())

    @torch.no_grad()
    def set_basis(self, basis: Tensor, epoch: int = -1) -> None:
        """Stores a basis.

        Args:
            basis (Tensor): V (d, r), orthonormal columns.
            epoch (int): Epoch (from 0) before which it was computed, or iteration in an
                iteration-based run. Defaults to -1.

        Raises:
            ValueError: The basis has another width or too many columns: at most
                ``ceil(gamma0 min(n, d))``, with d in the place of n for 'projection'.
        """
        width, most = self.basis.shape
        if basis.ndim != 2 or len(basis) != width or not 1 <= basis.shape[1] <= most:
            raise ValueError(f'expected a basis of shape ({width}, 1 to {most}), found '
                             f'`{tuple(basis.shape)}` in KernelComplexityLoss.set_basis')
        self.basis.zero_()[:, :basis.shape[1]].copy_(basis)
        self.basis_rank.fill_(basis.shape[1])
        self.basis_epoch.fill_(epoch)
        self.ready = True

    def refresh(self, moment: Tensor, n: int, epoch: int = -1) -> None:
        """Computes V from the landmarks' second moment (fact 1; form 'projection').

        Args:
            moment (Tensor): ``F_I^T F_I`` (d, d) of the landmarks, any scale.
            n (int): Number of training samples, for the rank.
            epoch (int): As in :meth:`set_basis`.
        """
        if self.needs_indices:
            raise ValueError("expected `refresh_from_features` for form 'sample', found a call of "
                             '`refresh` in KernelComplexityLoss')
        rank = truncation_rank(n, self.num_features, self.rank_ratio)
        self.set_basis(leading_basis(moment, rank), epoch)

    @torch.no_grad()
    def refresh_from_features(self, features: Tensor, landmarks: Tensor | None = None,
                              epoch: int = -1) -> None:
        """Computes V, and for 'sample' U and G, from all training features.

        Args:
            features (Tensor): F (n, d) in the order of the training set.
            landmarks (Tensor, optional): (m,) indices. Defaults to all n.
            epoch (int): As in :meth:`set_basis`.
        """
        features = features.double()
        chosen = features if landmarks is None else features[landmarks]
        rank = truncation_rank(len(features), self.num_features, self.rank_ratio)
        basis = leading_basis(moment_of(chosen), rank)
        if self.needs_indices:
            u = orthonormalise(features @ basis)  # U (n, r) from U~ = F V (fact 2)
            if len(u) != self.num_samples:
                raise ValueError(f'expected features of `{self.num_samples}` samples, found '
                                 f'`{len(u)}` in KernelComplexityLoss.refresh_from_features')
            self.coordinates.copy_(u)
            self.loadings.copy_(features.T @ u)
        self.set_basis(basis, epoch)
