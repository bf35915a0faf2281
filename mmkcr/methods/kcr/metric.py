"""Kernel complexity and the KCR bounds as a metric."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.evaluator import BaseMetric
from torch import Tensor

from mmkcr.functional.kernel import (
    MomentAccumulator,
    approximate_tnn,
    kernel_complexity,
    spectrum,
    tails,
    tnn,
    truncation_rank,
)
from mmkcr.methods.search.refresh import tapped_feature
from mmkcr.registry import METRICS


def landmark_mask(indices: Sequence[int], ratio: float, seed: int) -> np.ndarray:
    """Whether each sample is a landmark, (k,), bool.

    The draw depends on seed and position alone, not on the number of samples or ranks.

    Args:
        indices (Sequence[int]): Positions of k samples in the data set.
        ratio (float): Expected share of landmarks.
        seed (int): Seed of the draw.
    """
    return np.array([np.random.default_rng((seed, index)).random() < ratio for index in indices],
                    dtype=bool)


@METRICS.register_module()
class KernelComplexityMetric(BaseMetric):
    r"""KC, A-KC, TNN and the KCR bounds, streaming (KCR sections 3.2 and 4.6).

    .. math:: \text{KC} = \min_{h \in [0, r_0]} \frac{h}{n} +
              \sqrt{\frac1n \sum_{i>h} \lambda_i}, \qquad
              \text{KCR} = E_n \|NN(x) - y\|^2 \pm \text{KC} \pm \frac{x}{n}

    with :math:`r_0 = \min(n, d)`; A-KC takes the approximate TNN of a landmark basis in
    place of the tail sum. Memory is O(d^2): two moments, whatever n. Ranks merge their
    moments by one all-reduce; the samples with which the distributed sampler pads its
    last round are not counted. Needs :class:`mmkcr.FeatureTapHook`.

    Note:
        The theorem's bounds hold up to absolute constants, and for the training set; on a
        validation set the values describe that set's features. KC depends on n: compare
        values of equal n only (n is among the results).

    Args:
        landmark_ratio (float): Expected share of samples that are landmarks of A-KC, each
            drawn by its position. Defaults to 0.1.
        rank_ratio (float): gamma0 of the reported TNN. Defaults to 0.2.
        form (str): Of A-KC's TNN, see :func:`~mmkcr.functional.kernel.approximate_tnn`. Defaults to
            'projection'.
        x (float): The bounds hold with probability ``1 - exp(-x)``. Defaults to 3 (95 %).
        feature_key (str): Field with the feature (d,). Defaults to 'features'.
        score_key (str, optional): Field with the network's output (C,) to be compared with
            the one-hot label; None leaves the bounds out. Defaults to 'pred_score'.
        seed (int): Seed of the landmarks. Defaults to 0.
        **kwargs: See ``BaseMetric``.
    """

    default_prefix = 'kernel'

    def __init__(self, landmark_ratio: float = 0.1, rank_ratio: float = 0.2,
                 form: str = 'projection', x: float = 3.0, feature_key: str = 'features',
                 score_key: str | None = 'pred_score', seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 < landmark_ratio <= 1:
            raise ValueError(f'expected landmark_ratio in (0, 1], found `{landmark_ratio}` in '
                             'KernelComplexityMetric')
        self.landmark_ratio, self.rank_ratio = landmark_ratio, rank_ratio
        self.form, self.x = form, x
        self.feature_key, self.score_key, self.seed = feature_key, score_key, seed
        self._reset()

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Add a batch to the moments.

        The samples have the feature; for the bounds also score and ``gt_label``, or a one-hot
        ``gt_score``.
        """
        rows = [*self._tail, *map(self._row, data_samples)]
        if self._moment is None:  # also where this rank gets nothing but padding
            feature = rows[0][0]
            self._moment, self._landmarks = (
                MomentAccumulator(len(feature), feature.device) for _ in range(2))
        self._tail = rows[-1:]  # may be padding, which is known only at the end
        self._consume(rows[:-1])

    def evaluate(self, size: int) -> dict[str, float]:
        """Merge the ranks and compute the values (the same on every rank).

        With the prefix 'kernel' they are kc, a_kc, tnn, n, landmarks, and with scores
        squared_error, kcr_lower, kcr_upper, a_kcr_lower, a_kcr_upper. Positions from ``size`` on,
        the length of the data set, are padding.
        """
        rank, world = get_dist_info()
        # ranks interleave and pad by at most one sample each: position seen * world + rank
        if self._seen * world + rank < size:
            self._consume(self._tail)
        metrics = self.compute_metrics([])
        self._reset()
        return {f'{self.prefix}/{key}': value for key, value in metrics.items()}

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Compute the values from all ranks' moments; nothing is collected sample by sample.

        Raises:
            ValueError: There are no samples.
        """
        if self._moment is None:
            raise ValueError('expected at least one data sample, found `0` in '
                             'KernelComplexityMetric')
        # (d, d), over all ranks
        moment, n = self._moment.all_reduce().moment(), self._moment.count
        landmarks = self._landmarks.all_reduce()
        values, _ = spectrum(moment)
        rank = truncation_rank(n, len(values), self.rank_ratio)
        kc, _ = kernel_complexity(tails(values), n)
        metrics = dict(kc=kc, tnn=float(tnn(values, rank)), n=n, landmarks=landmarks.count)
        if landmarks.count:
            approximate = approximate_tnn(moment, landmarks.moment(), self.form)
            metrics['a_kc'], _ = kernel_complexity(approximate, n)
        if self.score_key is not None:
            error = torch.tensor([self._error], dtype=torch.float64)
            all_reduce(error)
            metrics['squared_error'] = mean = float(error) / n
            for key, name in (('kc', 'kcr'), ('a_kc', 'a_kcr')):
                if key in metrics:
                    metrics[f'{name}_lower'] = mean - metrics[key] - self.x / n
                    metrics[f'{name}_upper'] = mean + metrics[key] + self.x / n
        return metrics

    def _reset(self) -> None:
        self._tail, self._seen, self._error = [], 0, 0.0
        self._moment = self._landmarks = None

    def _row(self, sample: dict) -> tuple[Tensor, Tensor | float]:
        return (tapped_feature(sample, self.feature_key),
                0. if self.score_key is None else self._squared_error(sample))

    def _squared_error(self, sample: dict) -> Tensor:
        if self.score_key not in sample or not {'gt_label', 'gt_score'} & set(sample):
            raise ValueError(f'expected the fields `{self.score_key}` and `gt_label` in the data '
                             f'samples, found {sorted(sample)}: score_key=None leaves the bounds '
                             'out')
        score = sample[self.score_key].detach().double()
        if 'gt_score' in sample:
            return (score - sample['gt_score'].to(score)).square().sum()
        label = int(sample['gt_label'])
        return score.square().sum() - 2 * score[label] + 1  # |score - onehot|^2

    def _consume(self, rows: list) -> None:
        if not rows:
            return
        rank, world = get_dist_info()
        positions = np.arange(self._seen, self._seen + len(rows)) * world + rank
        chosen = landmark_mask(positions, self.landmark_ratio, self.seed)
        features = torch.stack([row[0] for row in rows])
        self._moment.add(features)
        self._landmarks.add(features[torch.from_numpy(chosen).to(features.device)])
        self._error += float(sum(row[1] for row in rows))
        self._seen += len(rows)
