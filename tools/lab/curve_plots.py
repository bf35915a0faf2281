"""Histograms of gates and curves over epochs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from .figures import saved_figure

Numbers = Sequence[float]


def plot_gate_histograms(scores: Mapping[str, Numbers],
                         path: str | Path,
                         temperature: float = 1.0,
                         bins: int = 40) -> None:
    r"""Histogram of the gates before noise, :math:`\sigma(\alpha / \tau)`.

    After a search that has decided, its gates are at 0 and 1.

    Args:
        scores (Mapping[str, Sequence[float]]): :math:`\alpha` of every unit,
            by the name of a curve: sites, or epochs.
        path (str | Path): Figure to write.
        temperature (float): :math:`\tau`. Defaults to 1.
        bins (int): Defaults to 40.

    Raises:
        ValueError: No scores.
    """
    _check_some(scores, 'gate scores')
    edges = np.linspace(0, 1, bins + 1)
    with saved_figure(path, (7, 4)) as (_, axes):
        for name, values in scores.items():
            # sigmoid(a / tau) as a tanh, which does not overflow
            gates = 0.5 * (1 + np.tanh(np.asarray(values, dtype=float) / (2 * temperature)))
            counts = np.histogram(gates, edges)[0] / max(gates.size, 1)
            axes.stairs(counts, edges, label=name, fill=len(scores) == 1, alpha=0.8)
        axes.set(xlabel=f'gate value sigmoid(alpha / {temperature:.3g})', ylabel='share of units',
                 xlim=(0, 1))
        if len(scores) <= 16:
            axes.legend(fontsize='small')


def plot_curve(curves: Mapping[str, Numbers],
               path: str | Path,
               xlabel: str = 'epoch',
               ylabel: str = '',
               x: Mapping[str, Numbers] | None = None) -> None:
    """Plot named curves, such as the temperature or the KC over epochs.

    Args:
        curves (Mapping[str, Sequence[float]]): Values by the curve's name.
        path (str | Path): Figure to write.
        xlabel (str): Defaults to ``'epoch'``.
        ylabel (str): Defaults to none.
        x (Mapping[str, Sequence[float]], optional): Positions by the curve's
            name. Defaults to 1, 2, 3, ...

    Raises:
        ValueError: No curves, or positions of another number.
    """
    _check_some(curves, 'curves')
    with saved_figure(path, (7, 4)) as (_, axes):
        for name, values in curves.items():
            positions = (x or {}).get(name, range(1, len(values) + 1))
            if len(positions) != len(values):
                raise ValueError(f'expected {len(values)} positions for the curve `{name}`, '
                                 f'found {len(positions)}')
            axes.plot(positions, values, label=name)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(alpha=0.3)
        axes.legend(fontsize='small')


def _check_some(values: Mapping, what: str) -> None:
    if not values or not all(len(value) for value in values.values()):
        raise ValueError(f'expected {what} to plot, found none in {sorted(values)}')
