"""Attention of trained models, side by side: entropy, rank and maps (DCS section C).

By layer and head: mean entropy of the rows of attention (lower is more decided) and mean rank
of the (masked) product of queries and keys. Histograms of the entropy, a figure a layer that
the models have in common by position (first, second, ...); of one head, maps of one query's
attention and the whole affinity matrices (figure 7 of the paper: --layer -1 --head 0).
Writes attention.json, entropy_*.png, maps.png and affinity.png.

Examples:
    python tools/analysis_tools/attention.py DENSE.py dense.pth DCS.py dcs.pth --names dense DCS
    python tools/analysis_tools/attention.py DCS.py dcs.pth --structures structure.json
"""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.attention_plots import (
    as_map,
    guess_grid,
    plot_affinity,
    plot_entropy,
    plot_maps,
)
from lab.attention_tap import Attention, AttentionTap
from lab.side_by_side import (
    Trained,
    add_model_arguments,
    pictures,
    read_models,
    spread_loader,
)
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import atomic_write
from mmkcr.evaluation.features import preserve_state
from mmkcr.models.tasks import unwrap
from mmkcr.visualization import format_table, show_progress


def row_entropy(weights: Tensor) -> Tensor:
    """Entropy of every row of attention weights (..., N, N), in nats, (..., N).

    Lower is more decided. A row is brought to the sum 1; one of zeros, a query
    without an open channel, attends to nothing and counts as uniform: log N.
    """
    total = weights.sum(-1, keepdim=True)
    rows = torch.where(total > 0, weights / total.clamp(min=1e-30), 1 / weights.shape[-1])
    return torch.special.entr(rows).sum(-1)


class AttentionStatistics:
    """Entropy and rank of one layer, head by head, over a stream of batches.

    Args:
        bins (int): Of the histogram over [0, log N]. Defaults to 40.
    """

    def __init__(self, bins: int = 40) -> None:
        self.bins, self.rows, self.maps = bins, 0, 0

    def add(self, attention: Attention) -> None:
        """Add a batch."""
        weights = attention.weights
        if self.rows == 0:
            self.heads, self.positions = weights.shape[1], weights.shape[-1]
            self.width = attention.width
            self.entropy, self.rank = torch.zeros(2, self.heads, dtype=torch.float64)
            self.histogram = torch.zeros(self.heads, self.bins, dtype=torch.float64)
        if weights.shape[-1] != self.positions:
            raise ValueError(f'expected images of one size, found attention over '
                             f'`{weights.shape[-1]}` positions after {self.positions}')
        # rounding may lift uniform rows above log N, out of the histogram
        entropy = row_entropy(weights).clamp(0, self.limit).transpose(0, 1).flatten(1).cpu()
        self.entropy += entropy.double().sum(1)
        for head, values in enumerate(entropy):
            self.histogram[head] += torch.histc(values, self.bins, 0, self.limit)
        self.rank += torch.linalg.matrix_rank(attention.product).double().sum(0).cpu()
        self.rows += entropy.shape[1]
        self.maps += len(weights)

    @property
    def limit(self) -> float:
        """float: Largest entropy, log N."""
        return math.log(self.positions) or 1.

    def values(self) -> dict[str, Any]:
        """dict: ``positions`` N, ``width`` d, and by head ``entropy``, ``rank``, ``histogram``."""
        return dict(positions=self.positions, width=self.width, limit=self.limit,
                    entropy=(self.entropy / self.rows).tolist(),
                    rank=(self.rank / self.maps).tolist(),
                    histogram=(self.histogram / self.rows).tolist())


@torch.no_grad()
def attention_statistics(model: nn.Module, loader: DataLoader, images: int | None = None,
                         bins: int = 40) -> dict[str, dict[str, Any]]:
    """Entropy and rank of every attention layer of a classifier.

    Args:
        model (BaseModel): The model, or a wrapper around it.
        loader (DataLoader): As of :func:`~lab.kernel_analysis.split_loader`.
        images (int, optional): How many are used. Defaults to all.
        bins (int): See :class:`AttentionStatistics`. Defaults to 40.

    Returns:
        dict[str, dict]: :meth:`AttentionStatistics.values` by module path.
    """
    model, seen = unwrap(model), 0
    with preserve_state(model), AttentionTap(model) as tap:
        found = {name: AttentionStatistics(bins) for name in tap.layers}
        for batch in show_progress(loader, 'Attention'):
            data = model.data_preprocessor(batch, False)
            left = None if images is None else images - seen
            inputs = data['inputs'][:left]
            model(inputs, mode='tensor')
            for name, attention in tap.attention.items():
                found[name].add(attention)
            seen += len(inputs)
            if images is not None and seen >= images:
                break
    return {name: statistics.values() for name, statistics in found.items() if statistics.rows}


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    add_model_arguments(parser)
    parser.add_argument('--layer', type=int, default=0, metavar='N',
                        help='attention layer of the pictures, from 0; negative from the end '
                        '(%(default)s)')
    parser.add_argument('--head', type=int, default=0, metavar='N',
                        help='its head, from 0 (%(default)s)')
    parser.add_argument('--query', type=float, nargs=2, default=(0.5, 0.5), metavar=('Y', 'X'),
                        help='position of the query, as shares of height and width (0.5 0.5)')
    return parser


def table(statistics: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Entropy and rank by model, layer and head."""
    def numbers(values: Sequence[float], digits: int) -> str:
        return ' '.join(f'{value:.{digits}f}' for value in values)

    rows = [(name, layer, values['positions'], values['width'], numbers(values['entropy'], 3),
             numbers(values['rank'], 1)) for name, layers in statistics.items()
            for layer, values in layers.items()]
    return format_table(('model', 'layer', 'N', 'd', 'entropy by head (nats)', 'rank by head'),
                        rows)


def head_weights(trained: Trained, batch: dict[str, Any], args: Any) -> tuple[Tensor, float]:
    """Attention of one head in every image of a batch, (B, N, N), and height by width.

    Raises:
        ValueError: No such layer or head.
    """
    model = trained.model
    inputs = model.data_preprocessor(batch, False)['inputs']
    with torch.no_grad(), AttentionTap(model) as tap:
        model(inputs, mode='tensor')
    layers = list(tap.attention.values())
    if not -len(layers) <= args.layer < len(layers):
        raise ValueError(f'expected `--layer` among {len(layers)} layers, found {args.layer}')
    weights = layers[args.layer].weights
    if not 0 <= args.head < weights.shape[1]:
        raise ValueError(f'expected `--head` from 0 to {weights.shape[1] - 1}, found {args.head}')
    # the first window of an image
    return weights[::len(weights) // len(inputs), args.head], inputs.shape[-2] / inputs.shape[-1]


def query_maps(weights: Tensor, ratio: float, query: Sequence[float]
               ) -> tuple[list[np.ndarray], tuple[float, float, float, float]]:
    """The attention of one query in every image, and where it is."""
    grid = guess_grid(weights.shape[-1], ratio)
    row, column = (min(int(share * size), size - 1) for share, size in zip(query, grid))
    index = weights.shape[-1] - grid[0] * grid[1] + row * grid[1] + column
    box = (column / grid[1], row / grid[0], 1 / grid[1], 1 / grid[0])
    return [as_map(image[index].numpy(), grid) for image in weights], box


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write and draw."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    models, folder = read_models(args), Path(args.out)
    loader = spread_loader(next(iter(models.values())).config, args.split, args.images)
    statistics = {name: attention_statistics(trained.model, loader)
                  for name, trained in models.items()}
    batch, images = pictures(spread_loader(next(iter(models.values())).config, args.split,
                                           args.shown), args.shown)
    maps, boxes, weights, entropy = {}, [], {}, {}
    for name, trained in models.items():
        found, ratio = head_weights(trained, batch, args)
        maps[name], box = query_maps(found, ratio, args.query)
        boxes = boxes or [box] * len(images)
        weights[name], entropy[name] = found.numpy(), row_entropy(found).mean(1).tolist()
    plot_maps(images, maps, folder / f'maps.{args.format}', boxes)
    plot_affinity(images, weights, entropy, folder / f'affinity.{args.format}')
    by_layer = list(zip(*(layers.values() for layers in statistics.values())))
    for number, layers in enumerate(by_layer, 1):
        plot_entropy(dict(zip(statistics, layers)), folder / f'entropy_{number}.{args.format}')
    with atomic_write(folder / 'attention.json') as path:
        path.write_text(json.dumps(dict(images=len(loader.dataset), models=statistics)) + '\n')
    print(f'{table(statistics)}\nattention.json and {len(by_layer) + 2} figures: {folder}')


if __name__ == '__main__':
    main()
