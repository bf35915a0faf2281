"""Training loops."""

from .bilevel import BilevelTrainLoop, IterBilevelTrainLoop
from .split import CycledSampler, split_indices

__all__ = [
    'BilevelTrainLoop', 'CycledSampler', 'IterBilevelTrainLoop', 'split_indices'
]
