"""Rank correlation against its definition."""

import math

import numpy as np
import pytest

from lab.rank_correlation import spearman, spearman_interval


def test_it_is_that_of_scipy():
    stats = pytest.importorskip('scipy.stats')
    generator = np.random.default_rng(0)
    a, b = generator.integers(0, 6, (2, 40))  # with ties
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert math.isnan(spearman(a, [1.] * 40))


def test_within_groups_differences_between_them_do_not_count():
    a, b = [1, 2, 11, 12], [2, 1, 12, 11]
    assert spearman(a, b) > 0 and spearman(a, b, [0, 0, 1, 1]) == -1


def test_the_interval_covers_and_shrinks():
    generator = np.random.default_rng(1)
    a = generator.normal(size=400)
    b = a + generator.normal(size=400)
    rho = spearman(a, b)
    low, high = spearman_interval(a, b, repeats=300)
    few = spearman_interval(a[:40], b[:40], repeats=300)
    assert low < rho < high < 1 and high - low < few[1] - few[0]
