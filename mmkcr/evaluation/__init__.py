"""Metrics and the mathematics behind them."""

from .metrics import InformationBottleneckMetric, KernelComplexityMetric

__all__ = ['InformationBottleneckMetric', 'KernelComplexityMetric']
