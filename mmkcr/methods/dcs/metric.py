"""Mutual information of features with inputs and labels as a metric."""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from torch import Tensor

from mmkcr.functional.clusters import fit_clusters, flat_inputs
from mmkcr.functional.information import InformationAccumulator, log_assignments
from mmkcr.methods.search.refresh import tapped_feature
from mmkcr.registry import METRICS

_CHUNK = 4096


@METRICS.register_module()
class InformationBottleneckMetric(BaseMetric):
    r"""I(X~, X), I(X~, Y), IB and its bounds (DCS section 3.3).

    With A = B = C clusters of the features and of the inputs by k-means on the evaluated
    set, soft assignments phi, and Q by equation 8 with the same clusters:

    .. math:: \text{IB} = I(\tilde X, X) - I(\tilde X, Y) \le \text{IBB}

    ``ibb`` is the bound with the lemma's term that the printed theorem drops; ``ibb_printed`` is
    the printed right side, which is not a bound. Needs :class:`mmkcr.FeatureTapHook`.

    The set's features, and inputs of at most 32 x 32 pixels, are held: n (4 d + 12 288) B over all
    ranks, 740 MB for ImageNet's validation set at d = 640. The memory of
    :func:`~mmkcr.methods.dcs.information_bottleneck.information_statistics` is bounded.

    Args:
        num_classes (int): C.
        inputs (bool): Whether to cluster the inputs; without them only I(X~, Y) is given.
            Defaults to True.
        mean, std (float | Sequence[float]): Of pixels as loaded, one or one a channel. Default to
            0, 1.
        beta, normalize, smoothing: See :class:`mmkcr.InformationBottleneckLoss`, as are the
            defaults.
        feature_key (str): See :class:`mmkcr.KernelComplexityMetric`. Defaults to 'features'.
        seed (int): Seed of k-means. Defaults to 0.
        **kwargs: See ``BaseMetric``.
    """

    default_prefix = 'information'

    def __init__(self, num_classes: int, inputs: bool = True, mean: float | Sequence[float] = 0.,
                 std: float | Sequence[float] = 1., beta: float = 1., normalize: bool = True,
                 smoothing: float = 1e-3, feature_key: str = 'features', seed: int = 0,
                 **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_classes, self.inputs = num_classes, inputs
        self.mean, self.std = (torch.tensor(value) if isinstance(value, float) else
                               torch.tensor(value).view(-1, 1, 1) for value in (mean, std))
        self.beta, self.normalize, self.smoothing = beta, normalize, smoothing
        self.feature_key, self.seed = feature_key, seed

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Store features, labels and inputs of a batch."""
        points = [None] * len(data_samples)
        if self.inputs:
            images = data_batch['inputs']
            images = (images if isinstance(images, Tensor) else _stack_images(images)).float()
            points = flat_inputs((images - self.mean.to(images)) / self.std.to(images)).cpu()
        for sample, point in zip(data_samples, points):
            feature = tapped_feature(sample, self.feature_key).float().cpu()
            self.results.append((feature, int(sample['gt_label']), point))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """Clusters, soft assignments and mutual information of the samples of all ranks.

        Raises:
            ValueError: There are no samples.
        """
        if not results:
            raise ValueError('expected at least one data sample, found `0` in '
                             'InformationBottleneckMetric')
        features, labels, inputs = zip(*results)
        rows = [self._log_phi(torch.stack(features)), torch.tensor(labels)]
        if self.inputs:
            rows.append(self._log_phi(_stack_images(inputs)))
        sums = InformationAccumulator(self.num_classes, self.num_classes,
                                      self.num_classes if self.inputs else 0)
        # the joint of inputs and features is summed in parts, which bounds the memory
        for part in zip(*(column.split(_CHUNK) for column in rows)):
            sums.add(*part)
        return sums.values(smoothing=self.smoothing)

    def _log_phi(self, points: Tensor) -> Tensor:
        centroids = fit_clusters(points, self.num_classes, self.seed, self.normalize)
        return log_assignments(points, centroids, self.beta, self.normalize)


def _stack_images(inputs: Sequence[Tensor]) -> Tensor:
    """Images, or their flattened pixels, in one tensor."""
    shapes = sorted({tuple(image.shape) for image in inputs})
    if len(shapes) > 1:
        raise ValueError('expected images of one size for the clusters of the inputs, found '
                         f'{shapes[0]} and {shapes[1]}: inputs=False leaves these out of '
                         'InformationBottleneckMetric')
    return torch.stack(list(inputs))
