"""Passes a layer's features to the metrics."""

from collections.abc import Mapping
from contextlib import ExitStack

from mmengine.hooks import Hook
from torch import Tensor

from mmkcr.evaluation.features import feature_layer_of
from mmkcr.models.feature_tap import features_on_samples
from mmkcr.registry import HOOKS


@HOOKS.register_module()
class FeatureTapHook(Hook):
    """Attaches a layer's features to the predicted data samples during val and test.

    Works for any model whose 'predict' mode returns one data sample per image (bare
    task models, models around them, distributed wrappers). Its forward hooks exist
    only during a val or test loop.

    Args:
        layer (str, optional): Tapped layer, as in
            :class:`mmkcr.models.feature_tap.FeatureTap`. Defaults to None: that of
            the model, see :func:`mmkcr.evaluation.features.feature_layer_of`.
        key (str): Field of the data samples that receives the vector (d,). A second hook with
            ``layer='head.fc', key='logits'`` passes on logits. Defaults to 'features'.
    """

    priority = 'NORMAL'

    def __init__(self, layer: str | None = None, key: str = 'features') -> None:
        self.layer, self.key = layer, key
        self._taps = ExitStack()

    def before_val_epoch(self, runner) -> None:
        """Register the forward hooks.

        Raises:
            ValueError: No ``layer`` was given, and the model's head has no linear layer.
        """
        self._taps.close()
        layer = feature_layer_of(runner.model) if self.layer is None else self.layer
        self._taps.enter_context(features_on_samples(runner.model, layer, self.key))

    def after_val_epoch(self, runner, metrics=None) -> None:
        """Remove the forward hooks."""
        self._taps.close()

    before_test_epoch, after_test_epoch = before_val_epoch, after_val_epoch


def tapped_feature(sample: Mapping, key: str) -> Tensor:
    """The vector (d,) that :class:`FeatureTapHook` attached to a data sample, for a metric."""
    if key not in sample:
        raise ValueError(f'expected the field `{key}` in the data samples, found {sorted(sample)}: '
                         'add `FeatureTapHook` to custom_hooks')
    return sample[key].detach()
