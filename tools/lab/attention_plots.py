"""Pictures of attention and of class activation, models side by side (DCS figures 4 to 7)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .figures import saved_figure
from .palette import AMOUNT


def plot_entropy(statistics: Mapping[str, Mapping[str, Any]], path: str | Path) -> None:
    """Histograms of the rows' entropy, a panel a head, models on top of each other.

    Args:
        statistics (Mapping[str, Mapping]): Statistics of one layer by model, see
            ``AttentionStatistics.values`` of tools/analysis_tools/attention.py.
        path (str | Path): Figure to write.

    Raises:
        ValueError: Other numbers of heads.
    """
    heads = {name: len(values['histogram']) for name, values in statistics.items()}
    if len(set(heads.values())) != 1:
        raise ValueError(f'expected one number of heads, found {heads}')
    number = next(iter(heads.values()))
    with saved_figure(path, (2.4 * number + 0.6, 2.8), ncols=number, squeeze=False,
                      sharey=True) as (figure, axes):
        for head, axis in enumerate(axes[0]):
            for name, values in statistics.items():
                counts = values['histogram'][head]
                edges = np.linspace(0, values['limit'], len(counts) + 1)
                axis.stairs(counts, edges, fill=True, alpha=0.5,
                            label=f'{name}: {values["entropy"][head]:.2f}')
            axis.set_title(f'head {head + 1}', fontsize='small')
            axis.legend(fontsize='x-small')
        figure.supxlabel('entropy of a row of attention (nats)', fontsize='small')
        figure.supylabel('share of rows', fontsize='small')


def as_map(weights: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """One query's weights (N,) on the grid of positions, without leading extra tokens."""
    height, width = grid
    return np.asarray(weights)[-height * width:].reshape(height, width)


def guess_grid(positions: int, ratio: float = 1.) -> tuple[int, int]:
    """Height and width of the grid of N positions, without extra tokens.

    Args:
        positions (int): N.
        ratio (float): Height by width of the image. Defaults to 1.

    Raises:
        ValueError: No grid of that ratio with at most two extra tokens.
    """
    for extra in range(min(3, positions)):
        width = round(((positions - extra) / ratio)**0.5)
        height = round(width * ratio)
        if width and height * width == positions - extra:
            return height, width
    raise ValueError(f'expected positions on a grid of ratio {ratio:.3g}, found `{positions}`')


def plot_maps(images: Sequence[np.ndarray], maps: Mapping[str, Sequence[np.ndarray]],
              path: str | Path, boxes: Sequence[tuple[float, float, float, float]] = (),
              overlay: bool = False) -> None:
    """Images in the first row, and one row of maps per model.

    Args:
        images (Sequence[np.ndarray]): (H, W, 3), 0 to 255, RGB.
        maps (Mapping[str, Sequence[np.ndarray]]): By model, one per image, (h, w).
        path (str | Path): Figure to write.
        boxes (Sequence[tuple], optional): Left, top, width and height of the query of
            every image, as shares of it. Defaults to none.
        overlay (bool): Draw the maps over the images. Defaults to False.
    """
    rows = 1 + len(maps)
    with saved_figure(path, (1.5 * len(images) + 0.8, 1.6 * rows), nrows=rows,
                      ncols=len(images), squeeze=False) as (_, axes):
        for column, image in enumerate(images):
            axes[0, column].imshow(image.astype(np.uint8))
            if boxes:
                _frame(axes[0, column], boxes[column], image.shape)
            for row, (name, found) in enumerate(maps.items(), 1):
                extent = (-0.5, image.shape[1] - 0.5, image.shape[0] - 0.5, -0.5)
                if overlay:
                    axes[row, column].imshow(image.astype(np.uint8), cmap='gray')
                axes[row, column].imshow(found[column], extent=extent, cmap='jet' if overlay
                                         else AMOUNT, alpha=0.5 if overlay else 1.,
                                         interpolation='bilinear' if overlay else 'nearest')
                if column == 0:
                    axes[row, column].set_ylabel(name, fontsize='small')
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])


def plot_affinity(images: Sequence[np.ndarray], weights: Mapping[str, Sequence[np.ndarray]],
                  entropy: Mapping[str, Sequence[float]], path: str | Path) -> None:
    """Affinity matrices, queries down and keys across, one row per model (DCS, figure 7).

    Args:
        images (Sequence[np.ndarray]): As in :func:`plot_maps`, the first row.
        weights (Mapping[str, Sequence[np.ndarray]]): By model, one per image, (N, N).
        entropy (Mapping[str, Sequence[float]]): Mean of the rows' entropy of each, in nats.
        path (str | Path): Figure to write.
    """
    rows = 1 + len(weights)
    with saved_figure(path, (1.9 * len(images) + 0.8, 2.1 * rows), nrows=rows,
                      ncols=len(images), squeeze=False) as (_, axes):
        for column, image in enumerate(images):
            axes[0, column].imshow(image.astype(np.uint8))
            # one scale per image, so that peaked and flat rows can be compared
            highest = max(float(found[column].max()) for found in weights.values())
            for row, (name, found) in enumerate(weights.items(), 1):
                axes[row, column].imshow(found[column], vmin=0, vmax=highest, cmap=AMOUNT,
                                         interpolation='nearest')
                axes[row, column].set_title(f'{entropy[name][column]:.2f} nats', fontsize='small')
                if column == 0:
                    axes[row, column].set_ylabel(name, fontsize='small')
        for axis in axes.flat:
            axis.set(xticks=[], yticks=[])


def _frame(axis: Any, box: tuple[float, float, float, float], shape: tuple[int, ...]) -> None:
    from matplotlib.patches import Rectangle
    height, width = shape[:2]
    left, top, wide, high = box
    axis.add_patch(Rectangle((left * width - 0.5, top * height - 0.5), wide * width,
                             high * height, fill=False, edgecolor='red', linewidth=1.5))
