"""What a config says that comes out of its run."""

from typing import Any, List, Mapping


def check_expected(config: Mapping[str, Any], metrics: Mapping[str, float]) -> List[str]:
    """Compare metrics with a config's ``expected``.

    Args:
        config (Mapping): With ``expected``, value and tolerance by metric.
        metrics (Mapping[str, float]): Of a test.

    Returns:
        list[str]: One sentence for every metric outside.
    """
    return [f'expected `{name}` of {value} +/- {tolerance}, found {metrics.get(name)}'
            for name, (value, tolerance) in (config.get('expected') or {}).items()
            if not abs(metrics.get(name, float('nan')) - value) <= tolerance]
