"""Spearman's rank correlation and its bootstrap interval, also within groups."""

from collections.abc import Sequence

import numpy as np

Values = Sequence[float]


def ranks(values: Values) -> np.ndarray:
    """Ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values, float), return_inverse=True,
                                   return_counts=True)
    # the c values that end at rank e have the mean rank e - (c - 1) / 2
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def spearman(a: Values, b: Values, groups: Sequence[int] | None = None) -> float:
    """Spearman's rank correlation of two lists; nan if all values of one list are equal.

    Args:
        a (Sequence[float]): One number per sample.
        b (Sequence[float]): Another number per sample.
        groups (Sequence[int], optional): Group of every sample. Ranks are taken and centred within
            groups, so differences between groups do not count. Defaults to None: one group.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    groups = np.zeros(len(a), int) if groups is None else np.asarray(groups)
    rows = np.zeros((2, len(a)))  # ranks of a and of b, centred within groups
    for group in np.unique(groups):
        own = groups == group
        for row, values in zip(rows, (a, b)):
            found = ranks(values[own])
            row[own] = found - found.mean()
    # Pearson's correlation of the centred ranks
    scale = np.sqrt((rows[0] @ rows[0]) * (rows[1] @ rows[1]))
    return float(rows[0] @ rows[1] / scale) if scale > 0 else float('nan')


def spearman_interval(a: Values, b: Values, groups: Sequence[int] | None = None,
                      repeats: int = 10000, level: float = 0.95,
                      seed: int = 0) -> tuple[float, float]:
    """Bootstrap percentile interval of :func:`spearman`, resampled within groups.

    Args:
        a (Sequence[float]): One number per sample.
        b (Sequence[float]): Another number per sample.
        groups (Sequence[int], optional): As in :func:`spearman`.
        repeats (int): Bootstrap resamples. Defaults to 10000.
        level (float): Confidence level. Defaults to 0.95.
        seed (int): Seed of the resampling. Defaults to 0.

    Returns:
        tuple[float, float]: Lower and upper end; nan if no resample has a correlation.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    labels = np.zeros(len(a), int) if groups is None else np.asarray(groups)
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == group) for group in np.unique(labels)]
    found = []
    for _ in range(repeats):
        drawn = np.concatenate([generator.choice(own, len(own)) for own in members])
        found.append(spearman(a[drawn], b[drawn], labels[drawn]))
    found = np.asarray(found)[np.isfinite(found)]  # nan: a resample with only equal values
    if not len(found):
        return float('nan'), float('nan')
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
