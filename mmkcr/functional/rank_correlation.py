"""Spearman's rank correlation and its bootstrap interval, also within groups."""

from typing import Optional, Sequence, Tuple

import numpy as np

Values = Sequence[float]


def ranks(values: Values) -> np.ndarray:
    """Ranks from 1, those of equal values their mean."""
    _, inverse, counts = np.unique(np.asarray(values, float), return_inverse=True,
                                   return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def spearman(a: Values, b: Values, groups: Optional[Sequence[int]] = None) -> float:
    """Rank correlation of two lists; nan where one of them has only equal values.

    Args:
        a (Sequence[float]): One number of every sample.
        b (Sequence[float]): Another.
        groups (Sequence[int], optional): Ranks are within groups and centred there: what differs
            between groups is not counted. Defaults to None: one group.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    groups = np.zeros(len(a), int) if groups is None else np.asarray(groups)
    rows = np.zeros((2, len(a)))
    for group in np.unique(groups):
        own = groups == group
        for row, values in zip(rows, (a, b)):
            found = ranks(values[own])
            row[own] = found - found.mean()
    scale = np.sqrt((rows[0] @ rows[0]) * (rows[1] @ rows[1]))
    return float(rows[0] @ rows[1] / scale) if scale > 0 else float('nan')


def spearman_interval(a: Values, b: Values, groups: Optional[Sequence[int]] = None,
                      repeats: int = 10000, level: float = 0.95,
                      seed: int = 0) -> Tuple[float, float]:
    """Percentile interval of :func:`spearman`, samples drawn anew within their groups.

    Args:
        a (Sequence[float]): One number of every sample.
        b (Sequence[float]): Another.
        groups (Sequence[int], optional): As there.
        repeats (int): Draws. Defaults to 10000.
        level (float): Of confidence. Defaults to 0.95.
        seed (int): Of the draws. Defaults to 0.

    Returns:
        tuple[float, float]: Ends; nan where no draw has a correlation.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    labels = np.zeros(len(a), int) if groups is None else np.asarray(groups)
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == group) for group in np.unique(labels)]
    found = []
    for _ in range(repeats):
        drawn = np.concatenate([generator.choice(own, len(own)) for own in members])
        found.append(spearman(a[drawn], b[drawn], labels[drawn]))
    found = np.asarray(found)[np.isfinite(found)]
    if not len(found):
        return float('nan'), float('nan')
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
