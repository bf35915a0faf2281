"""The information bottleneck of features and labels: the loss, its clusters, its values."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from mmengine.dist import all_gather_object, broadcast
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmkcr.evaluation.features import draw_samples, feature_batches, preserve_state, share_of_rank
from mmkcr.functional.clusters import (
    INPUTS_PER_CLUSTER,
    SAMPLES_PER_CLUSTER,
    fit_clusters,
    flat_inputs,
)
from mmkcr.functional.information import InformationAccumulator, log_assignments
from mmkcr.methods.search.refresh import RefreshedTerm, RefreshHook
from mmkcr.methods.search.regularized import labels_of
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS, MODELS


@MODELS.register_module()
class InformationBottleneckLoss(RefreshedTerm):
    r"""Variational bound of the IB loss (DCS theorem 3.1; docs/dcs.md).

    .. math:: \text{IBB}_j = -\frac1{|B_j|} \sum_{i \in B_j} \sum_a \phi(\tilde X_i, a)
              \log Q^{(t-1)}(a | y_i), \qquad
              \phi(x, a) = \operatorname{softmax}_a(-\beta \|x - c_a\|^2)

    The printed loss has a first term of the inputs,
    :math:`\sum_a \sum_b \phi(\tilde X_i, a) \phi(X_i, b) \log \phi(X_i, b)`. As
    :math:`\sum_a \phi(\tilde X_i, a) = 1`, it does not depend on the network and is not computed;
    nor is the lemma's term that the theorem drops. :class:`mmkcr.InformationBottleneckMetric`
    reports both.

    Centroids and Q are computed before each epoch (:class:`mmkcr.InformationBottleneckHook`) and
    are constant in the gradient. Mixed images count with the scores of their classes. Arithmetic is
    in fp32 (fp64 for fp64 features), also under autocast.

    Args:
        num_features (int): Feature width d.
        num_classes (int): C.
        num_clusters (int, optional): A. Defaults to None: C, as in the paper.
        weight (float): eta, the loss weight. Defaults to 50.
        beta (float): Inverse temperature of phi. Defaults to 1.
        normalize (bool): Bring features and centroids to unit length. The paper uses raw features,
            whose phi is nearly one-hot. Defaults to True.
        smoothing (float): Pseudo-count of every (a, y) in Q. Defaults to 1e-3.
        input_features (int, optional): Width of the flattened inputs, if the hook should
            report the IB value. Their centroids are then buffers here. Defaults to None.
    """

    state, hook, marker = 'clusters', 'InformationBottleneckHook', 'refreshed'

    needs_labels = True

    def __init__(self, num_features: int, num_classes: int, num_clusters: int | None = None,
                 weight: float = 50., beta: float = 1., normalize: bool = True,
                 smoothing: float = 1e-3, input_features: int | None = None) -> None:
        super().__init__(num_features)
        for name, value in (('num_clusters', num_clusters or num_classes), ('beta', beta),
                            ('smoothing', smoothing)):
            if value <= 0:
                raise ValueError(f'expected {name} > 0, found `{value}` in '
                                 'InformationBottleneckLoss')
        self.num_classes, self.num_clusters = num_classes, num_clusters or num_classes
        self.weight, self.beta, self.normalize = weight, beta, normalize
        self.smoothing, self.input_features = smoothing, input_features
        self.register_buffer('centroids', torch.zeros(self.num_clusters, num_features))
        self.register_buffer('log_q', torch.zeros(num_classes, self.num_clusters))
        # epoch of the last refresh, and whether there was one
        self.register_buffer('refresh_step', torch.full((), -1, dtype=torch.long))
        self.register_buffer('refreshed', torch.zeros((), dtype=torch.long))
        if input_features is not None:  # B = C clusters of the inputs
            self.register_buffer('input_centroids', torch.zeros(num_classes, input_features))
            self.register_buffer('input_refreshed', torch.zeros((), dtype=torch.long))

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        """The weighted loss of features (B, d) with classes (B,) or scores (B, C), a scalar."""
        self.check_ready(features)
        log_phi = self.log_phi(features)
        with torch.autocast(features.device.type, enabled=False):
            log_q = self.log_q.to(log_phi)
            # (B, A): log Q(. | y_i), or its mean under the scores of a mixed image
            rows = log_q[labels] if labels.ndim == 1 else labels.to(log_phi) @ log_q
            value = -(log_phi.exp() * rows).sum(1).mean()
        self._logged = dict(variational=value.detach())  # without eta
        return self.weight * value

    def log_phi(self, features: Tensor) -> Tensor:
        """Log of the soft assignments (B, A) of features (B, d) to the clusters."""
        return log_assignments(features, self.centroids, self.beta, self.normalize)

    @torch.no_grad()
    def refresh(self, centroids: Tensor, log_q: Tensor, step: int = -1) -> None:
        """Store a refreshed state.

        Args:
            centroids (Tensor): Centres of the clusters, (A, d).
            log_q (Tensor): Log of Q(a | y), (C, A).
            step (int): Epoch, from 0, before which they were computed. Defaults to -1: none.
        """
        self.check_shape('centroids', centroids, *self.centroids.shape)
        self.centroids.copy_(centroids)
        self.log_q.copy_(log_q)
        self.refresh_step.fill_(step)
        self.refreshed.fill_(1)
        self.ready = True


def labelled_batches(model: nn.Module, loader: DataLoader,
                     layer: str) -> Iterator[tuple[Tensor, Tensor, Any]]:
    """Features and labels of a loader's batches.

    Args:
        model (nn.Module): Classifier, in eval mode.
        loader (DataLoader): Of labelled images.
        layer (str): Layer whose features are tapped.

    Yields:
        tuple: Features (B, d), labels (B,) and the batch, see
        :func:`~mmkcr.evaluation.features.feature_batches`.
    """
    for features, batch in feature_batches(model, loader, layer):
        yield features, labels_of(batch['data_samples']).to(features.device), batch


@torch.no_grad()
def refresh_bottleneck(model: nn.Module, loss: InformationBottleneckLoss, dataset: Any,
                       like: DataLoader, layer: str = 'backbone', drawn: Tensor | None = None,
                       seed: int = 0, step: int = -1) -> dict[str, float]:
    """Refresh an :class:`InformationBottleneckLoss` in one pass over a data set.

    Every sample goes through the network, which is in eval mode, once. The features of the drawn
    samples are held, and every rank runs k-means on all of them, from the centroids of the previous
    refresh, if there was one. Q is summed over these and over all others as they stream by. With
    C = A = 1000 classes and clusters, d = 640 and the default of 256 samples per cluster, the
    largest tensor has 256 000 x 640 x 4 B = 655 MB, and Q and its sums 8 MB each, for any n.
    Reporting the IB value adds 256 000 x 1000 x 4 B = 1.02 GB divided by the number of ranks.

    Args:
        model (nn.Module): Classifier, in eval mode.
        loss (InformationBottleneckLoss): Term to refresh, in place.
        dataset (Dataset): Training set with test transforms.
        like (DataLoader): Loader whose settings are used.
        layer (str): Layer whose features are clustered. Defaults to ``'backbone'``.
        drawn (Tensor, optional): Positions of the samples that k-means sees, int64, ascending.
            Defaults to None: all.
        seed (int): Seed of k-means. Defaults to 0.
        step (int): Epoch, from 0, before which this is. Defaults to -1: none.

    Returns:
        dict[str, float]: See :meth:`~mmkcr.functional.information.InformationAccumulator.values`.
    """
    if loss.input_features is not None and not loss.input_refreshed:
        # they never change, nor do their clusters
        some = draw_samples(len(dataset), INPUTS_PER_CLUSTER * loss.num_classes, seed)
        loader = share_of_rank(dataset, None if some is None else some.tolist(), like)
        _fit(loss.input_centroids, [_inputs_of(model, batch) for batch in loader], loss, seed)
        loss.input_refreshed.fill_(1)

    def rows(indices: Tensor | None) -> Iterator[tuple]:
        """Terms of every batch: features, labels, log phi of the inputs."""
        loader = share_of_rank(dataset, None if indices is None else indices.tolist(), like)
        for features, labels, batch in labelled_batches(model, loader, layer):
            log_inputs = None if loss.input_features is None else log_assignments(
                _inputs_of(model, batch), loss.input_centroids, loss.beta, loss.normalize)
            yield features.float(), labels, log_inputs

    held = list(rows(drawn))
    _fit(loss.centroids, [row[0] for row in held], loss, seed,
         loss.centroids if loss.ready else None)
    sums = InformationAccumulator(
        loss.num_clusters, loss.num_classes, device=loss.centroids.device,
        input_clusters=loss.num_classes if loss.input_features is not None else 0)
    others = ()
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


def _fit(centroids: Tensor, parts: Sequence[Tensor], loss: InformationBottleneckLoss, seed: int,
         start: Tensor | None = None) -> None:
    """Fit centroids, in place, to the points of all ranks; of n, each holds every n-th."""
    local = torch.cat(parts) if parts else torch.zeros_like(centroids[:0])
    if local.shape[1] != centroids.shape[1]:
        raise ValueError(f'expected features or inputs of {centroids.shape[1]} numbers '
                         f'(`num_features`, `input_features`), found `{local.shape[1]}` in '
                         'InformationBottleneckLoss')
    shares = all_gather_object(local.cpu())
    points = local.new_empty(sum(map(len, shares)), local.shape[1])
    for rank, share in enumerate(shares):  # in their order
        points[rank::len(shares)] = share.to(points)
    centroids.copy_(fit_clusters(points, len(centroids), seed, loss.normalize, start))
    broadcast(centroids)


@HOOKS.register_module()
class InformationBottleneckHook(RefreshHook):
    """K-means on the features, and Q(a | y) with its clusters (DCS algorithm 1, line 16).

    It runs before every epoch with the term on, in one eval pass over the training set
    (:func:`refresh_bottleneck` tells the memory). It logs ``ib_i_labels``, I(X~, Y); if the loss
    has ``input_features``, also ``ib_i_inputs``, ``ib_ib`` and the bounds.

    The paper computes Q with the clusters of the previous epoch and then moves the clusters. Here Q
    follows the clusters, as in the authors' later public code.

    Args:
        interval (int): Steps between refreshes. Defaults to 1: every epoch.
        samples (int, optional): Features that k-means sees, drawn without replacement,
            seeded by the step. Defaults to None: 256 per cluster, or all if there are fewer.
        loss, **kwargs: See :class:`RefreshHook`; ``loss`` defaults to 'ib'.
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
        """Compute clusters and Q for a ``loss`` before a ``step`` of the ``runner``."""
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
        model (nn.Module): Classifier, also in a wrapper.
        loader (DataLoader): Of labelled images with test transforms.
        num_classes (int): C = A = B.
        layer (str): Layer whose features are clustered. Defaults to ``'backbone'``.
        seed (int): Seed of the draws and of k-means. Defaults to 0.
        **kwargs: ``beta``, ``normalize`` and ``smoothing`` of :class:`InformationBottleneckLoss`.
    """
    with preserve_state(model):
        # one sample tells the widths of features and inputs
        one = share_of_rank(loader.dataset, [0], loader, distributed=False)
        features, _, batch = next(labelled_batches(model, one, layer))
        inputs = _inputs_of(model, batch)
        loss = InformationBottleneckLoss(features.shape[1], num_classes,
                                         input_features=inputs.shape[1], **kwargs)
        loss.to(features.device)
        drawn = draw_samples(len(loader.dataset), SAMPLES_PER_CLUSTER * num_classes, seed)
        return refresh_bottleneck(model, loss, loader.dataset, loader, layer, drawn, seed)
