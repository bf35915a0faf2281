"""Metrics and the mathematics behind them."""

from mmkcr.lazy import lazy_names

_HOMES = dict(InformationBottleneckMetric='metrics', KernelComplexityMetric='metrics')

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
