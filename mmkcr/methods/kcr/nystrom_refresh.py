"""Refreshes the subspace of the kernel complexity loss."""

from typing import Any

import torch
from mmengine.runner import Runner
from torch import Tensor, nn

from mmkcr.datasets.part import sample_sources
from mmkcr.evaluation.features import feature_batches, share_of_rank
from mmkcr.functional.kernel import DEFAULT_LANDMARKS, MomentAccumulator, truncation_rank
from mmkcr.methods.search.refresh import RefreshHook
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS


@HOOKS.register_module()
class NystromRefreshHook(RefreshHook):
    """Computes the basis of :class:`mmkcr.KernelComplexityLoss` (KCR algorithm 1, line 11).

    It runs before every epoch t (counted from 1) with ``t % interval == 0``, and before the
    first epoch with the term on if there is no basis yet. Features of the landmarks are
    computed in eval mode with the test transforms, each rank its share. One all-reduce of the
    (d, d) moment gives the same basis on every rank. With ``by_epoch=False`` the same holds
    for iterations, with t = ``runner.iter + 1``.

    Args:
        interval (int): Epochs, or iterations, between refreshes. Defaults to 30.
        landmarks (int, optional): m, drawn without replacement, seeded by the step.
            Defaults to None: ``min(50000, n)``. (v1: 100000.)
        solver (str): 'nystrom' uses the landmarks, 'exact' all n samples in one streaming
            pass. Defaults to 'nystrom'.
        loss (str): Name in ``RegularizedModel.regularizers``. Defaults to 'kcr'.
        **kwargs: See :class:`RefreshHook`.

    Raises:
        ValueError: An argument is out of range, more landmarks than samples, or a loss of the form
            'sample' on a set that does not number its samples from 0.
    """

    def __init__(self, interval: int = 30, landmarks: int | None = None, solver: str = 'nystrom',
                 loss: str = 'kcr', **kwargs: Any) -> None:
        super().__init__(interval, loss, **kwargs)
        if solver not in ('nystrom', 'exact'):
            raise ValueError(f"expected solver 'nystrom' or 'exact', found `{solver}` in "
                             'NystromRefreshHook')
        if landmarks is not None and landmarks < 1:
            raise ValueError(f'expected landmarks >= 1, found `{landmarks}` in NystromRefreshHook')
        self.landmarks, self.solver = landmarks, solver
        self._number = landmarks or DEFAULT_LANDMARKS

    def check(self, loss: nn.Module) -> None:
        """Refuse fewer landmarks than the rank, more than samples, and samples without a row."""
        n = len(self.dataset)
        rank = truncation_rank(n, loss.num_features, loss.rank_ratio)
        if self.landmarks is not None and self.landmarks > n:
            raise ValueError(f'expected at most n = {n} landmarks, found `{self.landmarks}` in '
                             'NystromRefreshHook')
        if self.solver == 'nystrom' and self._number < rank:
            raise ValueError(f'expected at least as many landmarks as the rank {rank}, found '
                             f'`{self._number}` in NystromRefreshHook')
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
        """See :meth:`RefreshHook.compute`."""
        model, indices = unwrap(runner.model), self._draw(step)
        if loss.needs_indices:
            # the form 'sample' stores U for every sample, so it needs all features, not a moment
            loader = share_of_rank(self.dataset, None, self.like, distributed=False)
            features = torch.cat([batch for batch, _ in feature_batches(
                model, loader, model.feature_layer)])
            loss.refresh_from_features(features, indices, step)
        else:
            moment = MomentAccumulator(loss.num_features, loss.basis.device)
            chosen = None if indices is None else indices.tolist()
            loader = share_of_rank(self.dataset, chosen, self.like)
            for features, _ in feature_batches(model, loader, model.feature_layer):
                moment.add(features)
            loss.refresh(moment.all_reduce().moment(), len(self.dataset), step)
        used = len(self.dataset) if indices is None else len(indices)
        return f'basis of rank {int(loss.basis_rank)} from {used} of {len(self.dataset)} samples'

    def _draw(self, step: int) -> Tensor | None:
        """Landmarks of a step, ascending, or None for all samples."""
        return None if self.solver == 'exact' else self.draw(self._number, step)
