"""Training loops."""

from .bilevel import BilevelTrainLoop, IterBilevelTrainLoop
from .split import CycledSampler, DatasetPart, split_indices

__all__ = [
    'BilevelTrainLoop', 'CycledSampler', 'DatasetPart', 'IterBilevelTrainLoop', 'split_indices'
]
