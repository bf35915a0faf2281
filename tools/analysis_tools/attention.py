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
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.attention_plots import (
    as_map,
    guess_grid,
    plot_affinity,
    plot_entropy,
    plot_maps,
)
from lab.attention_statistics import attention_statistics, row_entropy
from lab.attention_tap import AttentionTap
from lab.side_by_side import (
    Trained,
    add_model_arguments,
    pictures,
    read_models,
    spread_loader,
)
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import atomic_write
from mmkcr.visualization import format_table


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
