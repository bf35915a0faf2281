"""Channels that a search keeps: KCR-Transformer, figure 3."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from mmkcr.core import Structure
from .figures import saved_figure
from .palette import ABSENT, CUT, KEPT, SIGNED

Masks = Structure | Mapping[str, Sequence[float]]


def site_values(masks: Masks) -> dict[str, np.ndarray]:
    """Values by site: 0 and 1 for a structure, scores unchanged.

    Args:
        masks (Structure | Mapping[str, Sequence[float]]): A structure, or one
            number per unit by site (the gates' alpha).

    Raises:
        ValueError: No sites.
    """
    if isinstance(masks, Structure):
        masks = {name: np.isin(np.arange(site.total), site.kept).astype(float)
                 for name, site in masks.sites.items()}
    if not masks:
        raise ValueError('expected a structure or scores with at least one site, found none')
    return {name: np.asarray(values, dtype=float) for name, values in masks.items()}


def as_grid(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Sites x channels, NaN beyond a site's width."""
    grid = np.full((len(values), max(map(len, values.values()))), np.nan)
    for row, numbers in zip(grid, values.values()):
        row[:len(numbers)] = numbers
    return grid


def kept_shares(masks: Masks) -> dict[str, float]:
    """Share of kept units by site; for scores the share above 0."""
    return {name: float((values > 0).mean()) for name, values in site_values(masks).items()}


def plot_channel_masks(masks: Masks, path: str | Path, title: str = '') -> None:
    """Heat map of blocks x channels.

    Args:
        masks (Structure | Mapping[str, Sequence[float]]): A structure: kept, cut and absent
            channels have one colour each. Scores: the colour is alpha, centred at the
            threshold 0, and a second map shows the kept channels.
        path (str | Path): Figure to write.
        title (str): Defaults to none.
    """
    values = site_values(masks)
    panels = [('kept', {name: (v > 0).astype(float) for name, v in values.items()})]
    if not isinstance(masks, Structure):
        panels.insert(0, ('alpha', values))
    height = 0.9 + 0.22 * len(values)
    with saved_figure(path, (9, height * len(panels) + 0.6), nrows=len(panels),
                      squeeze=False) as (figure, axes):
        for (name, panel), axis in zip(panels, axes[:, 0]):
            _draw(figure, axis, name, panel)
        figure.suptitle(title)


def _draw(figure, axis, name: str, values: Mapping[str, np.ndarray]) -> None:
    grid = as_grid(values)
    axis.set_yticks(range(len(values)), list(values), fontsize='x-small')
    axis.set_xlabel('channel')
    axis.set_title(name, fontsize='small')
    if name != 'kept':
        limit = max(float(np.nanmax(np.abs(grid))), 1e-12)
        image = axis.imshow(grid, aspect='auto', interpolation='nearest', cmap=SIGNED, vmin=-limit,
                            vmax=limit)
        figure.colorbar(image, ax=axis)
        return
    colours = dict(kept=KEPT, cut=CUT, absent=ABSENT)
    axis.imshow(grid, aspect='auto', interpolation='nearest', vmin=0., vmax=1.,
                cmap=ListedColormap([CUT, KEPT]).with_extremes(bad=ABSENT))
    shown = [*colours][:3 if np.isnan(grid).any() else 2]
    axis.legend(handles=[Patch(facecolor=colours[key], edgecolor='0.6', label=key)
                         for key in shown], loc='center left', bbox_to_anchor=(1., 0.5))


def plot_kept_shares(masks: Mapping[str, Masks], path: str | Path) -> None:
    """Bar chart of the share of kept channels by block.

    Args:
        masks (Mapping[str, Structure | Mapping]): One or more selections by
            name; bars of a block are placed side by side.
        path (str | Path): Figure to write.

    Raises:
        ValueError: The selections have different sites.
    """
    shares = {name: kept_shares(mask) for name, mask in masks.items()}
    sites = same_sites(shares)
    width = 0.8 / len(shares)
    with saved_figure(path, (max(6., 0.45 * len(sites) + 2), 4)) as (_, axes):
        for number, (name, values) in enumerate(shares.items()):
            axes.bar(np.arange(len(sites)) + number * width, values.values(), width, label=name)
        axes.set_xticks(np.arange(len(sites)) + 0.4 - width / 2, sites, rotation=60, ha='right',
                        fontsize='x-small')
        axes.set(ylabel='share of channels kept', ylim=(0, 1.02))
        if len(shares) > 1:
            axes.legend(fontsize='small')


def plot_mask_evolution(masks: Sequence[tuple[str, Masks]], path: str | Path) -> None:
    """Heat map of blocks x checkpoints: the share of kept channels over a search.

    Args:
        masks (Sequence[tuple[str, Structure | Mapping]]): Selections with
            their labels (epochs), in order.
        path (str | Path): Figure to write.

    Raises:
        ValueError: The selections have different sites.
    """
    shares = {label: kept_shares(mask) for label, mask in masks}
    sites = same_sites(shares)
    grid = np.array([list(values.values()) for values in shares.values()]).T
    with saved_figure(path, (max(6., 0.4 * len(shares) + 3), 1.5 + 0.25 * len(sites))) as (
            figure, axis):
        image = axis.imshow(grid, aspect='auto', interpolation='nearest', vmin=0, vmax=1)
        axis.set_yticks(range(len(sites)), sites, fontsize='x-small')
        axis.set_xticks(range(len(shares)), list(shares), rotation=60, ha='right',
                        fontsize='x-small')
        figure.colorbar(image, ax=axis, label='share of channels kept')


def same_sites(by_name: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The sites of all selections, which must be the same."""
    if not by_name:
        raise ValueError('expected at least one selection to plot, found none')
    first, *others = by_name.items()
    for name, values in others:
        if list(values) != list(first[1]):
            raise ValueError(f'expected selections of one backbone, found other sites in '
                             f'`{name}` than in `{first[0]}`')
    return list(first[1])
