"""KC and A-KC of a layer's outputs, collected while a model runs for another purpose."""

from typing import Any

import torch
from torch import nn

from mmkcr.functional.kernel import (
    MomentAccumulator,
    approximate_tnn,
    kernel_complexity,
    spectrum,
    tails,
)
from mmkcr.models.feature_tap import pool_features


class ComplexityTap:
    """Collects the pooled outputs of a module during the ``with`` block.

    KC depends on the number of samples, so only values for the same images can be compared.

    Args:
        module (nn.Module): The module, such as a backbone.
        every (int): Every how many samples one is a landmark of A-KC. Defaults to 2: calibration
            images are few.
    """

    def __init__(self, module: nn.Module, every: int = 2) -> None:
        self._module, self._every, self._handle = module, every, None
        self._all: MomentAccumulator | None = None
        self._landmarks: MomentAccumulator | None = None

    def __enter__(self) -> 'ComplexityTap':
        self._handle = self._module.register_forward_hook(self._collect)
        return self

    def __exit__(self, *exc: Any) -> None:
        self._handle.remove()

    def _collect(self, _: nn.Module, __: Any, output: Any) -> None:
        try:
            features = pool_features(output).detach()
        except TypeError:  # a model whose outputs are no maps, such as a dict of scores
            return
        if self._all is None:
            self._all, self._landmarks = (
                MomentAccumulator(features.shape[1], features.device) for _ in range(2))
        # counted over all batches
        self._landmarks.add(features[-self._all.count % self._every::self._every])
        self._all.add(features)

    def values(self) -> dict[str, float]:
        """``kc`` and ``a_kc``; empty if the module's outputs cannot be pooled."""
        if self._all is None or not torch.isfinite(self._all.total).all():
            return {}
        # (d, d)
        moment, count = self._all.moment(), self._all.count
        return dict(
            kc=kernel_complexity(tails(spectrum(moment)[0]), count)[0],
            a_kc=kernel_complexity(approximate_tnn(moment, self._landmarks.moment()), count)[0])
