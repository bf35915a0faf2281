"""What a job of several trainings takes as arguments and changes in every config."""

import argparse
import contextlib
import math
import os
import sys
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope

from mmkcr.apis import slim
from mmkcr.engine.build import build_model, default_shape, load_config
from mmkcr.engine.schedule import stretch_schedule


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every job of several trainings has.

    Args:
        parser (ArgumentParser): Changed in place.
    """
    parser.add_argument('--data-root', default='data/digits',
                        help='digits; made if they are not there (%(default)s)')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0], metavar='N',
                        help='one run of everything for each (0)')
    parser.add_argument('--epochs-factor', type=float, default=1., metavar='X',
                        help='stretch all schedules (%(default)s)')
    parser.add_argument('--train-slice', action='store_true',
                        help='measure on a fifth of the training digits, which is then not trained '
                        'on: to choose hyper-parameters without a look at the held-out digits')
    parser.add_argument('--jobs', type=int, default=min(2, os.cpu_count() or 1),
                        help='networks trained at a time, one process each (%(default)s)')


def check_run_arguments(args: argparse.Namespace) -> None:
    """Refuse arguments of :func:`add_run_arguments` that cannot be.

    Args:
        args (Namespace): Parsed.

    Raises:
        ValueError: A factor out of range, or a folder of digits that is none.
    """
    check_factor(args.epochs_factor, '--epochs-factor')
    root = Path(args.data_root)
    if root.exists() and not root.is_dir():
        raise ValueError(f'expected a folder of digits as --data-root, found the file {root}')


def check_factor(factor: float, flag: str) -> None:
    """Refuse a factor of schedules that is none.

    Args:
        factor (float): By which they are stretched.
        flag (str): Of the command, for the message.

    Raises:
        ValueError: Not positive, or not finite.
    """
    if not 0 < factor < math.inf:
        raise ValueError(f'expected `{flag}` above 0, found {factor}')


def check_target(config: Path, target: str | int | float, divisor: int = 1) -> None:
    """Refuse a target that a search cannot reach, before it is trained.

    Args:
        config (Path): Of the search.
        target (str | int | float): See :func:`mmkcr.apis.slim`.
        divisor (int): As there. Defaults to 1.

    Raises:
        ValueError: The message gives the reachable range.
    """
    cfg = load_config(config)
    with contextlib.redirect_stdout(sys.stderr):
        model = build_model(cfg)
    slim(model, target, divisor, default_shape(cfg, model))


def prepare_run(config: Config, seed: int, epochs_factor: float = 1.,
                train_slice: bool = False) -> Config:
    """Put seed and length into a config, and log for short epochs.

    Args:
        config (Config): Epoch-based; changed in place.
        seed (int): Of everything random.
        epochs_factor (float): See :func:`~mmkcr.engine.schedule.stretch_schedule`. Defaults to 1.
        train_slice (bool): See :func:`hold_out_of_train`. Defaults to False.

    Returns:
        Config: The same.
    """
    config.randomness.seed = seed
    for name in ('train', 'val', 'test'):
        # a digit takes 0.2 ms to load: no worker pays off
        if config.get(f'{name}_dataloader') is not None:
            config[f'{name}_dataloader'].update(num_workers=0, persistent_workers=False)
    if train_slice:
        hold_out_of_train(config)
    checkpoint = config.default_hooks.checkpoint
    checkpoint.update(max_keep_ckpts=1)
    if checkpoint.get('by_epoch', True):
        checkpoint.interval = 5
    config.default_hooks.logger.update(interval=10)
    stretch_schedule(config, epochs_factor)
    return config


def hold_out_of_train(config: Config) -> None:
    """Measure on every fifth training image, which is then not trained on, in place.

    For choosing hyper-parameters without a look at the held-out images; the data are sorted by
    class. Scenes cannot be held out so, since several show the same digit: there
    :func:`~lab.digit_sources.split_sources` splits the digits before scenes are made. Of a
    config that trains on some images only, such as those with labels, the others of these are left.

    Args:
        config (Config): On image folders; a pre-training need not have a validation set.
    """
    init_default_scope(config.default_scope)
    given = config.train_dataloader.dataset
    total = len(DATASETS.build(dict(given, pipeline=[], indices=None)))
    asked = given.get('indices')
    chosen = range(total)[:asked] if isinstance(asked, int) else asked
    given.indices = [i for i in (range(total) if chosen is None else chosen) if i % 5]
    for name in ('val', 'test'):
        if config.get(f'{name}_dataloader') is not None:
            dataset = config[f'{name}_dataloader'].dataset
            dataset.data_prefix, dataset.indices = 'train', list(range(0, total, 5))


def move_data(node: Any, old: str, new: str) -> Any:
    """Replace the beginning of every path in a config.

    Args:
        node (Any): Dicts, lists and values.
        old (str): Folder such as ``'data/digits'``.
        new (str): Folder.

    Returns:
        Any: The same, changed in place where it is a dict or a list.
    """
    if isinstance(node, dict):
        for key in list(node):
            node[key] = move_data(node[key], old, new)
    elif isinstance(node, (list, tuple)):
        return type(node)(move_data(item, old, new) for item in node)
    elif isinstance(node, str) and (node == old or node.startswith(f'{old}/')):
        return new + node[len(old):]
    return node
