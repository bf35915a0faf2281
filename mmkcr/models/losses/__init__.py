"""Terms by which a dense network teaches a smaller one."""

from .distillation import DistillationLoss
from .feature_distillation import FeatureDistillationLoss

__all__ = ['DistillationLoss', 'FeatureDistillationLoss']
