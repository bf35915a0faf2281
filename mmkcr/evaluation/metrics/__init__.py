"""MMEngine metrics."""

from .information_bottleneck import InformationBottleneckMetric
from .kernel_complexity import KernelComplexityMetric

__all__ = ['InformationBottleneckMetric', 'KernelComplexityMetric']
