"""Refreshes clusters and Q of the information bottleneck loss."""

from typing import Any

from mmengine.runner import Runner
from torch import nn

from mmkcr.functional.clusters import SAMPLES_PER_CLUSTER
from mmkcr.methods.search.refresh import RefreshHook
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS
from .bottleneck import refresh_bottleneck
from .information_bottleneck import InformationBottleneckLoss


@HOOKS.register_module()
class InformationBottleneckHook(RefreshHook):
    """K-means on the features, and Q(a | y) with its clusters (DCS algorithm 1, line 16).

    It runs before every epoch with the term on, so an epoch's loss uses the clusters and the Q of
    the weights at the end of the previous one. It takes one eval pass over the training set
    (:func:`~mmkcr.methods.dcs.bottleneck.refresh_bottleneck` tells the memory). It logs
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

    def __init__(self,
                 interval: int = 1,
                 samples: int | None = None,
                 loss: str = 'ib',
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
