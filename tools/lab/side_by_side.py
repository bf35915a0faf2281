"""Trained models side by side, for the analysis commands."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from mmengine.config import Config
from torch import nn
from torch.utils.data import DataLoader, Subset

from mmkcr.cli.command import Parser, add_trust_argument
from mmkcr.engine.build import build_model, load_config, load_weights, set_structure
from mmkcr.models.tasks import find_task
from .kernel_analysis import split_loader


class Trained(NamedTuple):
    """A model of a comparison.

    Args:
        config (Config): Its config.
        model (nn.Module): The task model with weights, in eval mode.
    """

    config: Config
    model: nn.Module


def add_model_arguments(parser: Parser) -> None:
    """Add the arguments of :func:`read_models`, and those that all comparisons share."""
    parser.add_argument('models', nargs='+', metavar='CONFIG CHECKPOINT',
                        help='one or more models, such as the dense one and the slimmed one')
    parser.add_argument('--names', nargs='+', help="of the models (the configs' names)")
    parser.add_argument('--structures', nargs='+', metavar='FILE',
                        help='structure file of every model, - for that of its config')
    parser.add_argument('--split', default='val', choices=('train', 'val'),
                        help='data set of the first config (%(default)s)')
    parser.add_argument('--images', type=int, default=100, metavar='N',
                        help='images for the numbers, spread over the data set (%(default)s)')
    parser.add_argument('--shown', type=int, default=6, metavar='N',
                        help='images for the pictures (%(default)s)')
    parser.add_argument('--out', default='work_dirs/analysis', metavar='DIR',
                        help='folder of figures and numbers (%(default)s)')
    parser.add_argument('--format', default='png', choices=('png', 'pdf', 'svg'),
                        help='kind of figure (%(default)s)')
    add_trust_argument(parser)


def read_models(args: Any) -> dict[str, Trained]:
    """Models with their weights, by name.

    Args:
        args (Namespace): With the arguments of :func:`add_model_arguments`.

    Raises:
        ValueError: No pairs, other numbers of names or structures, or names that are equal.
        FileNotFoundError: A file is missing.
    """
    if len(args.models) % 2:
        raise ValueError('expected a checkpoint after every config, found '
                         f'{len(args.models)} files')
    pairs = list(zip(args.models[::2], args.models[1::2]))
    names = args.names or [Path(config).stem for config, _ in pairs]
    structures = args.structures or ['-'] * len(pairs)
    if not len(pairs) == len(set(names)) == len(structures):
        raise ValueError(f'expected {len(pairs)} different names and structures, found {names} '
                         f'and {structures}')
    found = {}
    for name, structure, (path, checkpoint) in zip(names, structures, pairs):
        config = load_config(path)
        if structure != '-':
            set_structure(config, structure)
        model = build_model(config)
        load_weights(model, checkpoint)
        found[name] = Trained(config, find_task(model))
    return found


def spread_loader(config: Config, split: str, images: int) -> DataLoader:
    """A loader of images spread evenly over a data set, which may be sorted by class.

    Args:
        config (Config): See :func:`~lab.kernel_analysis.split_loader`.
        split (str): As there.
        images (int): How many, at most.

    Raises:
        ValueError: ``images`` is below 1.
    """
    if images < 1:
        raise ValueError(f'expected at least 1 image, found `{images}`')
    loader = split_loader(config, split)
    n = len(loader.dataset)
    indices = [i * n // min(images, n) for i in range(min(images, n))]
    return DataLoader(Subset(loader.dataset, indices),
                      batch_size=min(loader.batch_size or 32, 32), collate_fn=loader.collate_fn)


def pictures(loader: DataLoader, number: int) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A batch of the first images, and the images as (H, W, 3), 0 to 255, RGB."""
    samples = [loader.dataset[i] for i in range(min(number, len(loader.dataset)))]
    batch = loader.collate_fn(samples)
    return batch, [image.numpy()[::-1].transpose(1, 2, 0) for image in batch['inputs']]
