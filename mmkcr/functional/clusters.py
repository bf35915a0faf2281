"""Clusters of features and of inputs by scikit-learn's k-means."""

import warnings
from typing import Iterable, Optional, Sequence, Union

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

#: Samples that k-means looks at for every cluster; more do not move the centroids.
SAMPLES_PER_CLUSTER = 256
BATCH = 4096


def fit_clusters(features: Tensor, clusters: int, seed: int = 0, normalize: bool = True,
                 algorithm: str = 'minibatch') -> Tensor:
    """Centroids of features held in memory.

    Runs on one thread of the CPU: scikit-learn sums over threads in any order,
    and a resumed run must give the same numbers to the last bit. Of 256 000
    features of width 640, 1000 clusters take about half a minute.

    Args:
        features (Tensor): (m, d).
        clusters (int): A. If fewer distinct points are given, some centroids
            are the same, and share the points between them.
        seed (int): Of the initial centroids. Defaults to 0.
        normalize (bool): Features and centroids of unit length. Defaults to True.
        algorithm (str): 'minibatch' (``MiniBatchKMeans``) or 'lloyd' (``KMeans``, also
            taken where all features make one mini-batch of 4096). Defaults to 'minibatch'.

    Returns:
        Tensor: (A, d), fp32, on the CPU.

    Raises:
        ValueError: No features, features that are not finite, or another algorithm.
    """
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from threadpoolctl import threadpool_limits
    if algorithm not in ('minibatch', 'lloyd'):
        raise ValueError(f"expected the algorithm 'minibatch' or 'lloyd', found `{algorithm}`")
    points = _points(features, normalize).numpy()
    if not len(points) or not np.isfinite(points).all():
        raise ValueError('expected finite features of at least one sample to cluster, found '
                         f'`{"nan` or `inf" if len(points) else 0}`')
    number = min(clusters, len(points))
    several = algorithm == 'minibatch' and len(points) > BATCH
    kwargs = dict(batch_size=BATCH) if several else {}
    kmeans = (MiniBatchKMeans if kwargs else KMeans)(number, n_init=3, random_state=seed, **kwargs)
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter('ignore')  # fewer distinct points than clusters
        centroids = torch.from_numpy(kmeans.fit(points).cluster_centers_).float()
    return _centroids(centroids[torch.arange(clusters) % number], normalize)


def stream_clusters(batches: Iterable[Tensor], clusters: int, seed: int = 0,
                    normalize: bool = True) -> Tensor:
    """Centroids of points that do not fit into memory, in one pass.

    Args:
        batches (Iterable[Tensor]): Points (B, d) in random order. As many as there
            are clusters are held at a time.
        clusters (int): As of :func:`fit_clusters`.
        seed (int): As there.
        normalize (bool): As there.

    Returns:
        Tensor: (A, d), fp32, on the CPU.
    """
    from sklearn.cluster import MiniBatchKMeans
    from threadpoolctl import threadpool_limits
    kmeans, held = MiniBatchKMeans(clusters, random_state=seed, n_init=3), []
    fitted = False
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter('ignore')
        for batch in batches:
            held.append(_points(batch, normalize))
            if sum(map(len, held)) >= 4 * clusters:
                kmeans.partial_fit(torch.cat(held).numpy())
                held, fitted = [], True
        rest = torch.cat(held) if held else torch.empty(0)
        if not fitted:
            return fit_clusters(rest, clusters, seed, normalize)
        if len(rest):
            kmeans.partial_fit(rest.numpy())
    return _centroids(torch.from_numpy(kmeans.cluster_centers_).float(), normalize)


def flat_inputs(inputs: Union[Tensor, Sequence[Tensor]], size: Optional[int] = 32) -> Tensor:
    """Images as points: at most size x size pixels each, flattened.

    Args:
        inputs (Tensor | Sequence[Tensor]): (B, C, H, W), as the data preprocessor
            gives them, or B images (C, H, W); other shapes are flattened as they are.
        size (int, optional): Larger images are averaged down to it: at 224 x 224, 1000
            centroids would take 602 MB, at 32 x 32 they take 12 MB. Defaults to 32.

    Returns:
        Tensor: (B, C H' W'), fp32.
    """
    inputs = (inputs if isinstance(inputs, Tensor) else torch.stack(list(inputs))).float()
    if size is not None and inputs.ndim == 4 and max(inputs.shape[-2:]) > size:
        inputs = F.adaptive_avg_pool2d(inputs, [min(side, size) for side in inputs.shape[-2:]])
    return inputs.flatten(1)


def _points(features: Tensor, normalize: bool) -> Tensor:
    features = features.detach().float().cpu()
    return F.normalize(features, dim=1) if normalize else features


def _centroids(centroids: Tensor, normalize: bool) -> Tensor:
    return F.normalize(centroids, dim=1) if normalize else centroids
