"""Plots of the gallery alone: a kernel's spectrum, and a matrix of shares."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .figures import saved_figure
from .palette import AMOUNT, DENSE, SERIES


def plot_spectrum(eigenvalues: Sequence[float], bound: Sequence[float], path: str | Path,
                  rank: int) -> None:
    """Eigenvalues of a kernel, and the terms whose minimum is the kernel complexity (KCR).

    Args:
        eigenvalues (Sequence[float]): Eigenvalues of ``K / n``, descending.
        bound (Sequence[float]): ``h / n + sqrt(TNN_h / n)`` for h = 0, 1, ...
        path (str | Path): Figure to write.
        rank (int): Rank of the truncation: the loss reduces the eigenvalues behind it.
    """
    bound = np.asarray(bound, dtype=float)
    with saved_figure(path, (8.5, 3.2), ncols=2) as (_, (left, right)):
        places = np.arange(1, len(eigenvalues) + 1)
        left.semilogy(places, eigenvalues, color=SERIES[1])
        left.fill_between(places[rank:], eigenvalues[rank:], min(eigenvalues), color=SERIES[1],
                          alpha=0.25, label=f'sum: TNN, rank {rank}')
        left.axvline(rank, color=DENSE, linestyle='--', linewidth=1)
        left.set(xlabel='i', title='eigenvalues of the kernel over n')
        left.legend()
        best = int(bound.argmin())
        right.plot(bound, color=SERIES[1])
        right.plot(best, bound[best], 'o', color=SERIES[2], label=f'KC = {bound[best]:.3f}')
        right.set(xlabel='h', title='h / n + sqrt(TNN_h / n)')
        right.legend()


def plot_shares(shares: Any, path: str | Path, rows: str, columns: str,
                title: str = '') -> None:
    """A matrix of shares with its numbers, such as clusters against classes.

    Args:
        shares (array): (R, C).
        path (str | Path): Figure to write.
        rows (str): Meaning of a row.
        columns (str): Meaning of a column.
        title (str): Defaults to none.
    """
    shares = np.asarray(shares, dtype=float)
    height, width = shares.shape
    with saved_figure(path, (0.45 * width + 2., 0.36 * height + 1.2)) as (figure, axes):
        image = axes.imshow(shares, vmin=0, cmap=AMOUNT, aspect='auto')
        bright = 0.6 * shares.max()
        for row, column in zip(*np.nonzero(shares >= bright / 2)):
            share = shares[row, column]
            axes.text(column, row, f'{share:.2f}', ha='center', va='center', fontsize='x-small',
                      color='black' if share > bright else 'white')
        axes.set(xlabel=columns, ylabel=rows, title=title, xticks=range(width),
                 yticks=range(height))
        figure.colorbar(image, ax=axes)
