"""Losses of layers at every size, and a metric over time."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

from mmkcr.core import block_of
from .figures import saved_figure
from .palette import AMOUNT, DENSE, SERIES

Points = Sequence[tuple[float, float]]


def plot_sensitivity(losses: Mapping[str, Sequence[float]], path: str | Path,
                     kept: Mapping[str, int] | None = None, title: str = '') -> None:
    """Curves of the loss over the share of kept units: one panel per kind, one colour per depth.

    All panels share one scale of losses and one of colours: the layer's depth in the network.

    Args:
        losses (Mapping[str, Sequence[float]]): By site, ``<layer>.<kind>``: the loss with 0, 1, 2,
            ... units, as in ``sensitivity.json``.
        path (str | Path): Figure to write.
        kept (Mapping[str, int], optional): Units that a subnet keeps, by site: marked on the
            curves. Defaults to None.
        title (str): Defaults to none.

    Raises:
        ValueError: No sites, or ``kept`` of other sites.
    """
    if not losses:
        raise ValueError('expected losses of at least one site to plot, found none')
    if kept is not None and set(kept) != set(losses):
        raise ValueError(f'expected the {len(losses)} sites of the losses, found '
                         f'{sorted(set(kept) ^ set(losses))} in one of the two only')
    kinds: dict[str, list[str]] = {}
    for site in losses:
        kinds.setdefault(site.rpartition('.')[2], []).append(site)
    depth = {layer: number for number, layer in enumerate(
        dict.fromkeys(block_of(site) for site in losses))}
    colours = ScalarMappable(Normalize(0, max(len(depth) - 1, 1)), colormaps[AMOUNT])
    with saved_figure(path, (3.4 * len(kinds) + 1.2, 3.4), ncols=len(kinds), squeeze=False,
                      sharey=True) as (figure, axes):
        for axis, (kind, sites) in zip(axes[0], kinds.items()):
            for site in sites:
                values = np.asarray(losses[site], dtype=float)
                shares = np.linspace(0, 100, len(values))
                colour = colours.to_rgba(depth[block_of(site)])
                shown = values > 0  # the full layer's loss of 0 has no place on a log scale
                axis.plot(shares[shown], values[shown], color=colour, linewidth=1.3)
                if kept is not None and kept[site] < len(values) - 1:
                    axis.plot(shares[kept[site]], values[kept[site]], 'o', color=colour,
                              markeredgecolor='black', markersize=5)
            axis.set(title=kind, xlabel='units kept (%)', yscale='log', xlim=(-3, 103))
            axis.grid(True)
        axes[0, 0].set_ylabel('loss of the outputs')
        figure.colorbar(colours, ax=axes[0, -1], label='depth of the layer',
                        ticks=MaxNLocator(integer=True))
        figure.suptitle(title)


def plot_metric_over_time(dense: Mapping[str, tuple[float, float]],
                          slim: Mapping[str, Points], path: str | Path, metric: str = '',
                          runtime: str = '', labels: Sequence[str] = (),
                          step: float = 0.) -> None:
    """A metric over milliseconds: one curve per model, with its dense network as a square.

    Args:
        dense (Mapping[str, tuple[float, float]]): By model, milliseconds and metric.
        slim (Mapping[str, Sequence[tuple[float, float]]]): By model, the same for its subnets.
        path (str | Path): Figure to write.
        metric (str): Label of the values. Defaults to none.
        runtime (str): Runtime of the times. Defaults to none.
        labels (Sequence[str]): Labels of the subnets. Defaults to none.
        step (float): Change of the metric by one image, drawn as bars. Defaults to 0: none.

    Raises:
        ValueError: No models, or others in the one than in the other.
    """
    if not dense or set(dense) != set(slim):
        raise ValueError(f'expected dense networks and subnets of the same models, found '
                         f'{sorted(dense)} and {sorted(slim)}')
    with saved_figure(path, (6., 3.8)) as (_, axes):
        for number, (name, points) in enumerate(slim.items()):
            line = sorted([*points, dense[name]])
            colour = SERIES[1 + number % (len(SERIES) - 1)]
            axes.plot(*zip(*line), '-', color=colour, linewidth=1, alpha=0.6)
            if points:
                axes.errorbar(*zip(*points), yerr=step or None, fmt='o', capsize=2, color=colour,
                              label=name)
            axes.plot(*dense[name], 's', color=DENSE, markersize=8,
                      label='dense' if number == 0 else None)
            for text, point in zip(labels, points):
                axes.annotate(text, point, xytext=(4, -12), textcoords='offset points',
                              fontsize='x-small')
        unit = f'ms for one image{f" in {runtime}" if runtime else ""}'
        axes.set(xlabel=unit, ylabel=metric)
        axes.grid(True)
        axes.legend()
