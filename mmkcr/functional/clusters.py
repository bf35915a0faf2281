"""Clusters of features and of inputs by k-means."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

#: Features that k-means looks at for every cluster; more do not move the centroids.
SAMPLES_PER_CLUSTER = 256
#: Flattened inputs for every cluster, which are wider: 786 MB for 1000 clusters.
INPUTS_PER_CLUSTER = 64
_ROWS = 8192  # of the distance matrix at a time: bounds its memory


def fit_clusters(features: Tensor, clusters: int, seed: int = 0, normalize: bool = True,
                 start: Tensor | None = None) -> Tensor:
    """Centroids (A, d), fp32, by k-means++ and at most 25 of Lloyd's iterations, on their device.

    Iterations end when the mean squared distance falls by less than a thousandth. No sum depends
    on the order of threads: a resumed run gives the same bits. Empty clusters keep their centroids.

    Args:
        features (Tensor): (m, d).
        clusters (int): A. If there are fewer distinct points, some centroids coincide.
        seed (int): Seed of the first centroids. Defaults to 0.
        normalize (bool): Bring features and centroids to unit length. Defaults to True.
        start (Tensor, optional): First centroids (A, d), as of the previous epoch.
            Defaults to None: k-means++ on ten points per cluster.
    """
    points = _points(features, normalize)
    if not len(points) or not torch.isfinite(points).all():
        raise ValueError('expected finite features of at least one sample to cluster, found '
                         f'`{"nan` or `inf" if len(points) else 0}`')
    centroids = (_first_centroids(points, clusters, seed) if start is None else start).to(points)
    before = float('inf')
    with torch.autocast(points.device.type, enabled=False):
        for _ in range(25):
            nearest = [torch.cdist(part, centroids).min(1) for part in points.split(_ROWS)]
            error = sum(float(distances.values.double().square().sum()) for distances in nearest)
            if error >= before * (1 - 1e-3):
                break
            before = error
            labels = torch.cat([distances.indices for distances in nearest])
            counts = torch.bincount(labels, minlength=clusters)
            # sorted by label: unlike a scatter-add, the same sums on any number of threads
            ordered = points[labels.argsort(stable=True)]
            means = torch.segment_reduce(ordered, 'mean', lengths=counts)
            centroids = torch.where(counts[:, None] > 0, means, centroids)
    return _points(centroids, normalize)


def _first_centroids(points: Tensor, clusters: int, seed: int) -> Tensor:
    from sklearn.cluster import kmeans_plusplus
    from threadpoolctl import threadpool_limits
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(seed))
    some = points[order[:10 * clusters].to(points.device)].cpu()
    some = some.repeat(-(-clusters // len(some)), 1)  # scikit-learn wants as many as clusters
    with threadpool_limits(1):
        return torch.from_numpy(kmeans_plusplus(some.numpy(), clusters, random_state=seed)[0])


def flat_inputs(inputs: Tensor | Sequence[Tensor]) -> Tensor:
    """Images (B, C, H, W), or B images (C, H, W), as points (B, C H' W') in fp32.

    Larger ones are averaged down to 32 x 32 pixels. Other shapes are flattened as they are.
    """
    inputs = (inputs if isinstance(inputs, Tensor) else torch.stack(list(inputs))).float()
    if inputs.ndim == 4:  # at 224 x 224, 1000 centroids would take 602 MB instead of 12
        inputs = F.adaptive_avg_pool2d(inputs, [min(side, 32) for side in inputs.shape[-2:]])
    return inputs.flatten(1)


def _points(features: Tensor, normalize: bool) -> Tensor:
    features = features.detach().float()
    return F.normalize(features, dim=1) if normalize else features
