"""What a config says that comes out of its run."""

from typing import Any, List, Mapping


def check_expected(config: Mapping[str, Any], metrics: Mapping[str, float],
                   key: str = 'expected') -> List[str]:
    """Compare metrics with what a config expects.

    Args:
        config (Mapping): With value and tolerance by metric under ``key``.
        metrics (Mapping[str, float]): Of a test.
        key (str): Defaults to ``'expected'``: what comes out of the config as
            it is.

    Returns:
        list[str]: One sentence for every metric outside.
    """
    return [f'expected `{name}` of {value} +/- {tolerance}, found {metrics.get(name)}'
            for name, (value, tolerance) in (config.get(key) or {}).items()
            if not abs(metrics.get(name, float('nan')) - value) <= tolerance]
