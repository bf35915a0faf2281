"""Noise of gates that stay in the network after the search."""

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmkcr.core.gate import NoisyGate, resample_gates
from mmkcr.registry import HOOKS


@HOOKS.register_module()
class GateNoiseHook(Hook):
    """Draws the noise of every gate in a retraining, such as that of the QK masks (DCS, 3.1).

    In a search the model itself does so. The noise is a function of the seed and the iteration.

    Args:
        seed (int): Seed of the noise. Defaults to 0.
    """

    priority = 'ABOVE_NORMAL'

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def before_train(self, runner: Runner) -> None:
        """Refuse a model without gates.

        Raises:
            ValueError: There is none.
        """
        if not any(isinstance(module, NoisyGate) for module in runner.model.modules()):
            raise ValueError('expected a model with at least one gate to draw noise for, found '
                             f'none in `{type(runner.model).__name__}` for GateNoiseHook')

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        """Draw the noise of an iteration."""
        resample_gates(runner.model, self.seed, runner.iter)
