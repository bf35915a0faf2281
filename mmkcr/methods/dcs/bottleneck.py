"""Clusters, Q and mutual information of a model on a data set, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from mmengine.dist import all_gather_object, broadcast
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmkcr.evaluation.features import draw_samples, feature_batches, share_of_rank, undisturbed
from mmkcr.functional.clusters import (
    INPUTS_PER_CLUSTER,
    SAMPLES_PER_CLUSTER,
    fit_clusters,
    flat_inputs,
)
from mmkcr.functional.information import InformationAccumulator, log_assignments
from mmkcr.methods.search.refresh import RefreshHook
from mmkcr.methods.search.regularized import labels_of
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS
from .information_bottleneck import InformationBottleneckLoss


def labelled_batches(model: nn.Module, loader: DataLoader,
                     layer: str) -> Iterator[tuple[Tensor, Tensor, Any]]:
    """Features (B, d) of :func:`~mmkcr.evaluation.features.feature_batches`, labels, the batch."""
    for features, batch in feature_batches(model, loader, layer):
        yield features, labels_of(batch['data_samples']).to(features.device), batch


@torch.no_grad()
def refresh_bottleneck(model: nn.Module, loss: InformationBottleneckLoss, dataset: Any,
                       like: DataLoader, layer: str = 'backbone', drawn: Tensor | None = None,
                       seed: int = 0, step: int = -1) -> dict[str, float]:
    """Refresh an :class:`InformationBottleneckLoss` in one pass over a data set.

    Every sample goes through the network once. The features of the drawn samples are held, and
    every rank runs k-means on all of them. Q is summed over these and over
    all others as they stream by. With C = A = 1000 classes and clusters, d = 640 and the default of
    256 samples per cluster, the largest tensor has 256 000 x 640 x 4 B = 655 MB, and Q and its sums
    8 MB each, for any n. Reporting the IB value adds 256 000 x 1000 x 4 B = 1.02 GB divided by the
    number of ranks. k-means starts from the centroids of the previous refresh, if there was one.

    Args:
        model (BaseModel): The task model, or a wrapper around it, in eval mode.
        loss (InformationBottleneckLoss): The loss to refresh. With ``input_features`` its
            input clusters are fitted too, once.
        dataset (Dataset): With test transforms and labels.
        like (DataLoader): See :func:`~mmkcr.evaluation.features.share_of_rank`.
        layer (str): Layer of the features. Defaults to 'backbone'.
        drawn (Tensor, optional): Samples for k-means, ascending. Defaults to all.
        seed (int): Seed of k-means. Defaults to 0.
        step (int): See :meth:`InformationBottleneckLoss.refresh`.

    Returns:
        dict[str, float]: See :meth:`~mmkcr.functional.information.InformationAccumulator.values`.
    """
    if loss.input_features is not None and not loss.input_refreshed:
        _cluster_inputs(model, loss, dataset, like, seed)

    def rows(indices: Tensor | None) -> Iterator[tuple]:
        """What is summed of every batch: features, labels, log phi of the inputs."""
        loader = share_of_rank(dataset, None if indices is None else indices.tolist(), like)
        for features, labels, batch in labelled_batches(model, loader, layer):
            log_inputs = None if loss.input_features is None else log_assignments(
                _inputs_of(model, batch), loss.input_centroids, loss.beta, loss.normalize)
            yield features.float(), labels, log_inputs

    held = list(rows(drawn))
    features = _of_all_ranks([row[0] for row in held], loss.centroids)
    loss.centroids.copy_(fit_clusters(features, loss.num_clusters, seed, loss.normalize,
                                      loss.centroids if loss.ready else None))
    broadcast(loss.centroids)
    # memory: k-means was the last that needed them together
    del features
    sums = InformationAccumulator(
        loss.num_clusters, loss.num_classes, device=loss.centroids.device,
        input_clusters=loss.num_classes if loss.input_features is not None else 0)
    others: Iterable[tuple] = ()
    if drawn is not None:  # the second pass sees only samples that the first one did not
        left = torch.ones(len(dataset), dtype=torch.bool)
        left[drawn] = False
        others = rows(left.nonzero().flatten())
    for features, labels, log_inputs in chain(held, others):
        sums.add(loss.log_phi(features), labels, log_inputs)
    sums.all_reduce()
    loss.refresh(loss.centroids, sums.log_q(loss.smoothing), step)
    return sums.values(loss.log_q)


def _inputs_of(model: nn.Module, batch: Any) -> Tensor:
    return flat_inputs(unwrap(model).data_preprocessor(batch, False)['inputs'])


def _cluster_inputs(model: nn.Module, loss: InformationBottleneckLoss, dataset: Any,
                    like: DataLoader, seed: int) -> None:
    """Fit the clusters of the inputs, which never change."""
    drawn = draw_samples(len(dataset), INPUTS_PER_CLUSTER * loss.num_classes, seed)
    loader = share_of_rank(dataset, None if drawn is None else drawn.tolist(), like)
    points = _of_all_ranks([_inputs_of(model, batch) for batch in loader], loss.input_centroids)
    if points.shape[1] != loss.input_features:
        raise ValueError(f'expected inputs of {loss.input_features} numbers (`input_features`), '
                         f'found `{points.shape[1]}` in InformationBottleneckLoss')
    loss.input_centroids.copy_(fit_clusters(points, loss.num_classes, seed, loss.normalize))
    broadcast(loss.input_centroids)
    loss.input_refreshed.fill_(1)


def _of_all_ranks(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """Points of all ranks, (n, d), of which each has every world_size-th, in their order."""
    local = torch.cat(parts) if parts else torch.zeros_like(like[:0])
    shares = all_gather_object(local.cpu())
    points = local.new_empty(sum(map(len, shares)), local.shape[1])
    for rank, share in enumerate(shares):
        points[rank::len(shares)] = share.to(points)
    return points


@HOOKS.register_module()
class InformationBottleneckHook(RefreshHook):
    """K-means on the features, and Q(a | y) with its clusters (DCS algorithm 1, line 16).

    It runs before every epoch with the term on, so an epoch's loss uses the clusters and the Q of
    the weights at the end of the previous one. It takes one eval pass over the training set
    (:func:`refresh_bottleneck` tells the memory). It logs
    ``ib_i_labels``, I(X~, Y); if the loss has ``input_features``, also ``ib_i_inputs``, ``ib_ib``
    and the bounds.

    The paper computes Q with the clusters of the previous epoch and then moves the clusters. Here Q
    follows the clusters, as in the authors' later public code.

    Args:
        interval (int): Steps between refreshes. Defaults to 1: every epoch.
        samples (int, optional): Features that k-means sees, drawn without replacement,
            seeded by the step. Defaults to None: 256 per cluster, or all if there are fewer.
        loss (str): Name in ``RegularizedModel.regularizers``. Defaults to 'ib'.
        **kwargs: See :class:`RefreshHook`.

    Raises:
        ValueError: An argument is out of range.
        TypeError: The regulariser is another loss.
    """

    def __init__(self, interval: int = 1, samples: int | None = None, loss: str = 'ib',
                 **kwargs: Any) -> None:
        super().__init__(interval, loss, **kwargs)
        if samples is not None and samples < 1:
            raise ValueError(f'expected samples >= 1, found `{samples}` in '
                             'InformationBottleneckHook')
        self.samples = samples

    def check(self, loss: nn.Module) -> None:
        """Refuse a regulariser without clusters."""
        if not isinstance(loss, InformationBottleneckLoss):
            raise TypeError('expected an InformationBottleneckLoss for InformationBottleneckHook, '
                            f'found `{type(loss).__name__}` as `{self.loss}`')

    def due(self, loss: nn.Module, step: int) -> bool:
        """While the term is on: the first time, and every ``interval`` steps."""
        return loss.active and (not loss.ready or (step + 1) % self.interval == 0)

    def compute(self, runner: Runner, loss: nn.Module, step: int) -> str:
        """See :meth:`RefreshHook.compute`."""
        drawn = self.draw(self.samples or SAMPLES_PER_CLUSTER * loss.num_clusters, step)
        values = refresh_bottleneck(
            runner.model, loss, self.dataset, self.like, unwrap(runner.model).feature_layer,
            drawn, (self.seed * 1000003 + step) % 2**32, step)
        n = int(values.pop('n'))
        for key, value in values.items():
            runner.message_hub.update_scalar(f'train/{self.loss}_{key}', value)
        text = ', '.join(f'{key} {value:.5f}' for key, value in values.items())
        return f'{loss.num_clusters} clusters and Q of {n} samples ({text})'


def information_statistics(model: nn.Module, loader: DataLoader, num_classes: int,
                           layer: str = 'backbone', seed: int = 0,
                           **kwargs: Any) -> dict[str, float]:
    """I(X~, X), I(X~, Y), IB and its bounds of any trained classifier.

    Args:
        model (BaseModel): A classifier, or a wrapper around one.
        loader (DataLoader): Of labelled images, with test transforms.
        num_classes (int): C = A = B.
        layer (str): Layer of the features. Defaults to 'backbone'.
        seed (int): Seed of k-means and of its samples. Defaults to 0.
        **kwargs: ``beta``, ``normalize`` and ``smoothing`` of :class:`InformationBottleneckLoss`.

    Returns:
        dict[str, float]: See
        :meth:`~mmkcr.functional.information.InformationAccumulator.values`.
    """
    with undisturbed(model):
        # one sample tells the widths of features and inputs
        one = share_of_rank(loader.dataset, [0], loader, distributed=False)
        features, _, batch = next(labelled_batches(model, one, layer))
        inputs = _inputs_of(model, batch)
        loss = InformationBottleneckLoss(features.shape[1], num_classes,
                                         input_features=inputs.shape[1], **kwargs)
        loss.to(features.device)
        drawn = draw_samples(len(loader.dataset), SAMPLES_PER_CLUSTER * num_classes, seed)
        return refresh_bottleneck(model, loss, loader.dataset, loader, layer, drawn, seed)
