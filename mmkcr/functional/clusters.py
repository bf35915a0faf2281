"""Clusters of features and of inputs by k-means."""

import math
import warnings
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce, get_dist_info
from torch import Tensor

#: Samples that k-means looks at for every cluster; more do not move the centroids.
SAMPLES_PER_CLUSTER = 256
#: Samples for every cluster among which k-means++ draws the first centroids.
_FIRST_PER_CLUSTER = 10
_ROWS = 8192  # of the distance matrix at a time: bounds its memory


def fit_clusters(features: Tensor, clusters: int, seed: int = 0, normalize: bool = True,
                 start: Tensor | None = None, iterations: int = 25,
                 distributed: bool = False) -> Tensor:
    """Centroids of features held in memory, by k-means++ and Lloyd's iterations.

    It runs on the features' device. With ``distributed`` it runs on all ranks at once: each rank
    holds some of the features, sums and counts are all-reduced in fp64, and every rank gets the
    same centroids. Iterations end when the mean squared distance falls by less than a thousandth.
    No sum depends on the order of threads, so a resumed run gives the same numbers to the last
    bit. A cluster that loses all its points keeps its centroid.

    Args:
        features (Tensor): (m, d), those of this rank.
        clusters (int): A. If there are fewer distinct points, some centroids coincide and share
            their points.
        seed (int): Seed of the first centroids. Defaults to 0.
        normalize (bool): Bring features and centroids to unit length. Defaults to True.
        start (Tensor, optional): First centroids (A, d), such as those of the previous epoch.
            Defaults to None: k-means++ on ten points per cluster.
        iterations (int): Most iterations. Defaults to 25.
        distributed (bool): Whether the ranks hold different features, where rank r has the
            r-th and every world_size-th after it. Defaults to False.

    Returns:
        Tensor: (A, d), fp32, on the features' device.

    Raises:
        ValueError: There are no features, or some are not finite.
    """
    points = _points(features, normalize)
    state = torch.tensor([len(points), int(not torch.isfinite(points).all())], device=points.device)
    if distributed:  # before the check, so that all ranks raise or none does
        all_reduce(state)
    if not state[0] or state[1]:
        raise ValueError('expected finite features of at least one sample to cluster, found '
                         f'`{"nan` or `inf" if state[0] else 0}`')
    with torch.autocast(points.device.type, enabled=False):
        if start is None:
            start = _first_centroids(points, clusters, seed, distributed)
        centroids, before = start.to(points), float('inf')
        for _ in range(iterations):
            sums, counts, error = _assigned_sums(points, centroids, distributed)
            if float(error) >= before * (1 - 1e-3):  # the error is that of the present centroids
                break
            means = sums / counts.clamp(min=1)[:, None]  # (A, d); without points the old ones stay
            centroids = torch.where(counts[:, None] > 0, means.to(points), centroids)
            before = float(error)
    return _centroids(centroids, normalize)


def _first_centroids(points: Tensor, clusters: int, seed: int, distributed: bool) -> Tensor:
    """k-means++ on a sample of the points of all ranks; the same result on every rank."""
    generator = torch.Generator().manual_seed(seed)
    rank, world = get_dist_info() if distributed else (0, 1)
    total = torch.tensor(len(points), device=points.device)
    if distributed:
        all_reduce(total)
    # the same points for any number of ranks: point i of all is point i // world of rank i % world
    order = torch.randperm(int(total), generator=generator)[:_FIRST_PER_CLUSTER * clusters]
    mine = order % world == rank
    some = points.new_zeros(len(order), points.shape[1])  # each rank fills its rows; summed below
    some[mine.to(points.device)] = points[(order[mine] // world).to(points.device)]
    if distributed:
        all_reduce(some)
    lengths = some.square().sum(1)

    def distances(index: Tensor) -> Tensor:
        """Squared distances of all points to those at ``index``, shape (candidates, points)."""
        products = some[index] @ some.T
        return (lengths - 2 * products + lengths[index, None]).clamp(min=0)

    chosen = torch.randint(len(some), (1, ), generator=generator).to(points.device)
    nearest = distances(chosen)[0]  # squared distance of every point to its nearest centroid
    # several candidates each time; the one that lowers the error most wins, as in scikit-learn
    trials = 2 + int(math.log(clusters))
    draws = torch.rand(clusters - 1, trials, generator=generator, dtype=torch.float64)
    for draw in draws.to(points.device):
        nearest[chosen[-1]] = 0  # rounding may leave a rest, and it must not be drawn again
        cumulated = nearest.double().cumsum(0)
        if float(cumulated[-1]) > 0:  # drawn with probability proportional to squared distance
            candidates = torch.searchsorted(cumulated, draw * cumulated[-1])
        else:  # every distinct point is a centroid already: repeat them in turn
            candidates = chosen.new_tensor([len(chosen) % len(some)])
        # (trials, points): squared distances to the nearest centroid with each candidate added
        lower = torch.minimum(nearest, distances(candidates.clamp(max=len(some) - 1)))
        best = int(lower.sum(1).argmin())
        chosen = torch.cat([chosen, candidates[best:best + 1].clamp(max=len(some) - 1)])
        nearest = lower[best]
    return some[chosen]


def _assigned_sums(points: Tensor, centroids: Tensor,
                   distributed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Sums (A, d) and counts (A,) of the points nearest to each centroid, and the mean error."""
    clusters, width = centroids.shape
    # one buffer, one message: [:A, :d] sums, [:A, d] counts, [A, 0] error
    total = points.new_zeros(clusters + 1, width + 1, dtype=torch.float64)
    lengths = centroids.square().sum(1)
    for part in points.split(_ROWS):
        # |c|^2 - 2 x c: the |x|^2 that is missing is the same for all c, and is added below
        distances, labels = torch.addmm(lengths, part, centroids.T, alpha=-2).min(1)
        order = labels.argsort(stable=True)
        counts = torch.bincount(labels, minlength=clusters)
        # sorted by label: unlike a scatter-add, the same sums on any number of threads
        sums = torch.segment_reduce(part[order].double(), 'sum', lengths=counts)
        total[:clusters, :width] += sums
        total[:clusters, width] += counts
        total[clusters, 0] += (distances + part.square().sum(1)).clamp(min=0).double().sum()
    if distributed:
        all_reduce(total)
    counts = total[:clusters, width]
    return total[:clusters, :width], counts, total[clusters, 0] / counts.sum()


def stream_clusters(batches: Iterable[Tensor], clusters: int, seed: int = 0,
                    normalize: bool = True) -> Tensor:
    """Centroids of points that do not fit into memory, in one pass, by scikit-learn.

    If there are fewer than four points per cluster, :func:`fit_clusters` does the work.

    Args:
        batches (Iterable[Tensor]): Points (B, d) in random order. They are collected until there
            are four per cluster; each such collection makes one update.
        clusters (int): See :func:`fit_clusters`.
        seed (int): See :func:`fit_clusters`. Defaults to 0.
        normalize (bool): See :func:`fit_clusters`. Defaults to True.

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
            held.append(_points(batch, normalize).cpu())
            if sum(map(len, held)) >= 4 * clusters:  # the first update needs at least A points
                kmeans.partial_fit(torch.cat(held).numpy())
                held, fitted = [], True
        rest = torch.cat(held) if held else torch.empty(0, 0)
        if not fitted:
            return fit_clusters(rest, clusters, seed, normalize)
        if len(rest):
            kmeans.partial_fit(rest.numpy())
    return _centroids(torch.from_numpy(kmeans.cluster_centers_).float(), normalize)


def flat_inputs(inputs: Tensor | Sequence[Tensor], size: int | None = 32) -> Tensor:
    """Images as points: at most size x size pixels each, flattened.

    Args:
        inputs (Tensor | Sequence[Tensor]): (B, C, H, W), as the data preprocessor
            gives them, or B images (C, H, W); other shapes are flattened as they are.
        size (int, optional): Larger images are averaged down to this size. At 224 x 224, 1000
            centroids would take 602 MB; at 32 x 32 they take 12 MB. Defaults to 32.

    Returns:
        Tensor: (B, C H' W'), fp32.
    """
    inputs = (inputs if isinstance(inputs, Tensor) else torch.stack(list(inputs))).float()
    if size is not None and inputs.ndim == 4 and max(inputs.shape[-2:]) > size:
        inputs = F.adaptive_avg_pool2d(inputs, [min(side, size) for side in inputs.shape[-2:]])
    return inputs.flatten(1)


def _points(features: Tensor, normalize: bool) -> Tensor:
    features = features.detach().float()
    return F.normalize(features, dim=1) if normalize else features


def _centroids(centroids: Tensor, normalize: bool) -> Tensor:
    return F.normalize(centroids, dim=1) if normalize else centroids
