"""Regularisers that a search or a retraining adds to the task's loss."""

from .adaptive_one_hot import AdaptiveOneHotLoss
from .distillation import DistillationLoss
from .feature_distillation import FeatureDistillationLoss
from .information_bottleneck import InformationBottleneckLoss
from .kernel_complexity import KernelComplexityLoss
from .price import MacsPrice

__all__ = [
    'AdaptiveOneHotLoss', 'DistillationLoss', 'FeatureDistillationLoss',
    'InformationBottleneckLoss', 'KernelComplexityLoss', 'MacsPrice'
]
