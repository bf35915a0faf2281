"""Kernel complexity reduction: the approximate truncated nuclear norm as a loss, and its basis."""

from typing import Any

import torch
from mmengine.runner import Runner
from torch import Tensor, nn

from mmkcr.datasets.part import sample_sources
from mmkcr.evaluation.features import feature_batches, share_of_rank
from mmkcr.functional.kernel import (
    DEFAULT_LANDMARKS,
    MomentAccumulator,
    leading_basis,
    moment_of,
    orthonormalise,
    truncation_rank,
)
from mmkcr.methods.search.refresh import RefreshedTerm, RefreshHook
from mmkcr.methods.search.teachers import mean_over_processes
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS, MODELS


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

    Arithmetic is in fp32 (fp64 for fp64 features), also under autocast. The basis is a buffer of
    fixed shape, zero before the first refresh and in the columns beyond the rank.

    Args:
        num_features (int): Feature width d.
        rank_ratio (float): gamma0; ``r = ceil(gamma0 min(n, d))``. Defaults to 0.2.
        weight (float): eta, the loss weight. Defaults to 0.2 (v2; v1: 1).
        form (str): 'projection' or 'sample'. Defaults to 'projection'.
        scale_free (bool): Divide by the energy ``sum ||F_i||^2`` of the batch of all processes,
            so that the term does not grow with the features' scale. Defaults to False.
        num_samples (int, optional): n, for 'sample' only, where it is required.
    """

    state, hook, marker = 'a basis', 'NystromRefreshHook', 'basis_rank'

    def __init__(self, num_features: int, rank_ratio: float = 0.2, weight: float = 0.2,
                 form: str = 'projection', scale_free: bool = False,
                 num_samples: int | None = None) -> None:
        super().__init__(num_features)
        if form != ('projection' if num_samples is None else 'sample'):
            raise ValueError("expected form 'projection', or 'sample' with `num_samples`, found "
                             f'`{form}` with `{num_samples}` in KernelComplexityLoss')
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
        """Tensor: Epoch, or iteration, of the last refresh: ``basis_epoch``."""
        return self.basis_epoch

    def forward(self, features: Tensor, indices: Tensor | None = None) -> Tensor:
        """The weighted loss of features (B, d), a scalar in fp32 or fp64.

        The form 'sample' needs their ``indices`` (B,), positions in the training set.
        """
        self.check_ready(features)
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
        """Store a basis.

        Args:
            basis (Tensor): V, (d, r); r is at most ``ceil(gamma0 min(n, d))``, with d in the place
                of n for 'projection'.
            epoch (int): Epoch from 0, or iteration, before which it was computed. Defaults to -1:
                none.

        Raises:
            ValueError: A basis of another shape.
        """
        columns = min(max(basis.shape[-1], 1), self.basis.shape[1])
        self.check_shape('a basis', basis, self.num_features, columns)
        self.basis.zero_()[:, :basis.shape[1]].copy_(basis)
        self.basis_rank.fill_(basis.shape[1])
        self.basis_epoch.fill_(epoch)
        self.ready = True

    @torch.no_grad()
    def refresh(self, moment: Tensor, n: int, epoch: int = -1,
                features: Tensor | None = None) -> None:
        """Compute V from the landmarks' second moment (fact 1), and for 'sample' U and G.

        Args:
            moment (Tensor): ``F_I^T F_I`` at any scale, (d, d).
            n (int): Number of training samples.
            epoch (int): See :meth:`set_basis`. Defaults to -1: none.
            features (Tensor, optional): F of all training samples in their order, (n, d), fp64;
                for 'sample', where it is required. Defaults to None.

        Raises:
            ValueError: 'sample' was built for another number of samples.
        """
        basis = leading_basis(moment, truncation_rank(n, self.num_features, self.rank_ratio))
        if self.needs_indices:
            if n != self.num_samples:
                raise ValueError(f'expected features of `{self.num_samples}` samples, found `{n}` '
                                 'in KernelComplexityLoss.refresh')
            u = orthonormalise(features @ basis)  # U (n, r) from U~ = F V (fact 2)
            self.coordinates.copy_(u)
            self.loadings.copy_(features.T @ u)
        self.set_basis(basis, epoch)

    def refresh_from_features(self, features: Tensor, landmarks: Tensor | None = None,
                              epoch: int = -1) -> None:
        """Refresh from features in memory.

        Args:
            features (Tensor): Of all training samples in their order, (n, d).
            landmarks (Tensor, optional): Positions of the landmarks, (m,). Defaults to None: all.
            epoch (int): See :meth:`set_basis`. Defaults to -1: none.
        """
        features = features.detach().double()
        chosen = features if landmarks is None else features[landmarks]
        self.refresh(moment_of(chosen), len(features), epoch, features)


@HOOKS.register_module()
class NystromRefreshHook(RefreshHook):
    """Computes the basis of :class:`mmkcr.KernelComplexityLoss` (KCR algorithm 1, line 11).

    It runs before every epoch t (counted from 1) with ``t % interval == 0``, and before the first
    epoch with the term on if there is no basis yet; with ``by_epoch=False`` the same holds for
    iterations. One all-reduce of the landmarks' (d, d) moment gives the same basis on every rank.

    Args:
        interval (int): Epochs, or iterations, between refreshes. Defaults to 30.
        landmarks (int, optional): m, drawn without replacement, seeded by the step.
            Defaults to None: ``min(50000, n)``. (v1: 100000.)
        solver (str): 'nystrom' uses the landmarks, 'exact' all n samples in one streaming
            pass. Defaults to 'nystrom'.
        loss, **kwargs: See :class:`RefreshHook`; ``loss`` defaults to 'kcr'.
    """

    def __init__(self, interval: int = 30, landmarks: int | None = None, solver: str = 'nystrom',
                 loss: str = 'kcr', **kwargs: Any) -> None:
        super().__init__(interval, loss, **kwargs)
        if solver not in ('nystrom', 'exact'):
            raise ValueError(f"expected solver 'nystrom' or 'exact', found `{solver}` in "
                             'NystromRefreshHook')
        self.landmarks, self.solver = landmarks, solver

    def check(self, loss: nn.Module) -> None:
        """Refuse fewer landmarks than the rank, more than samples, and samples without a row."""
        n = len(self.dataset)
        rank = truncation_rank(n, loss.num_features, loss.rank_ratio)
        if self.landmarks is not None and not rank <= self.landmarks <= n:
            raise ValueError(f'expected at least as many landmarks as the rank {rank} and at most '
                             f'n = {n}, found `{self.landmarks}` in NystromRefreshHook')
        if loss.needs_indices:
            # the loss finds a sample's row of U by `sample_idx`, its place in the innermost set
            sources = sample_sources(self.dataset)
            for index, source in enumerate(sources):
                row = self.dataset.get_data_info(index).get('sample_idx')
                if row is None or row >= n or sources[row] != source:
                    raise ValueError(
                        f"expected samples numbered from 0 for form 'sample' of `{self.loss}`, "
                        f'found `sample_idx` {row} at place {index} of a '
                        f"`{type(self.dataset).__name__}`: use form 'projection'")

    def due(self, loss: nn.Module, step: int) -> bool:
        """Every ``interval`` steps, and when the term is on without a basis."""
        return (step + 1) % self.interval == 0 or (loss.active and not loss.ready)

    def compute(self, runner: Runner, loss: nn.Module, step: int) -> str:
        """Compute the basis of a ``loss`` before a ``step`` of the ``runner``."""
        model, indices, n = unwrap(runner.model), self._draw(step), len(self.dataset)
        if loss.needs_indices:
            # the form 'sample' stores U for every sample, so it needs all features, not a moment
            loader = share_of_rank(self.dataset, None, self.like, distributed=False)
            loss.refresh_from_features(torch.cat([features for features, _ in feature_batches(
                model, loader, model.feature_layer)]), indices, step)
        else:
            moment = MomentAccumulator(loss.num_features, loss.basis.device)
            chosen = None if indices is None else indices.tolist()
            loader = share_of_rank(self.dataset, chosen, self.like)
            for features, _ in feature_batches(model, loader, model.feature_layer):
                moment.add(features)
            loss.refresh(moment.all_reduce().moment(), n, step)
        used = n if indices is None else len(indices)
        return f'basis of rank {int(loss.basis_rank)} from {used} of {n} samples'

    def _draw(self, step: int) -> Tensor | None:
        """Landmarks of a step, ascending, or None for all samples."""
        number = len(self.dataset) if self.solver == 'exact' else self.landmarks
        return self.draw(number or DEFAULT_LANDMARKS, step)
