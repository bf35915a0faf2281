"""Comparing a run's metrics with those that its config expects."""

from collections.abc import Mapping
from typing import Any


def check_expected(config: Mapping[str, Any], metrics: Mapping[str, float],
                   key: str = 'expected') -> list[str]:
    """One sentence for every metric that differs from what a config expects.

    Args:
        config (Mapping): Holds value and tolerance by metric under ``key``.
        metrics (Mapping[str, float]): Metrics of a test.
        key (str): Defaults to ``'expected'``, the results of the config as it is.
    """
    return [f'expected `{name}` of {value} +/- {tolerance}, found {metrics.get(name)}'
            for name, (value, tolerance) in (config.get(key) or {}).items()
            # not <=: also for nan
            if not abs(metrics.get(name, float('nan')) - value) <= tolerance]
