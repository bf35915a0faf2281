"""Scores of attention heads (drop-in depthwise convolution, figure 3)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.ticker import MaxNLocator

from .figures import saved_figure
from .mask_plots import as_grid
from .palette import AMOUNT


def plot_head_scores(scores: Mapping[str, Sequence[float]], path: str | Path,
                     kept: Mapping[str, Sequence[int]] | None = None, title: str = '') -> None:
    """Heat map of blocks x heads; within a block heads are sorted by score, as in the paper.

    Args:
        scores (Mapping[str, Sequence[float]]): By site.
        path (str | Path): Figure to write.
        kept (Mapping[str, Sequence[int]], optional): Heads that stay attention, by site: the
            others are marked.
        title (str): Defaults to none.
    """
    values = {site: np.asarray(score, dtype=float) for site, score in scores.items()}
    orders = {site: np.argsort(score, kind='stable') for site, score in values.items()}
    grid = as_grid({site: score[orders[site]] for site, score in values.items()})
    width = max(5., 2.5 + 0.3 * grid.shape[1])
    with saved_figure(path, (width, max(2.6, 1.4 + 0.26 * len(values)))) as (figure, axes):
        image = axes.imshow(grid, aspect='auto', interpolation='nearest', cmap=AMOUNT)
        axes.set_yticks(range(len(values)), list(values), fontsize='x-small')
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel='head, by score', title=title)
        figure.colorbar(image, ax=axes, label='score (deviation over images)')
        if kept is not None:
            marks = [(column, row) for row, (site, order) in enumerate(orders.items())
                     for column, head in enumerate(order)
                     if int(head) not in set(map(int, kept[site]))]
            if marks:
                axes.set_xlabel('head, by score; dots: replaced')
                axes.plot(*zip(*marks), 'o', color='white', markeredgecolor='black', markersize=5)
