"""Whether kernel complexity tells which subnets lose: rank correlation over many subnets.

Compresses a dense classifier for some budgets, draws for every block one
of them (or the dense block), and measures of every such subnet KC and A-KC of its features on the
training set and what it loses on the test set. Prints Spearman's correlations with bootstrap
intervals: over all subnets, and within quarters of the MACs (what these tell is left out).

Examples:
    python tools/analysis_tools/kc_correlation.py CONFIG CHECKPOINT --budgets 30% 20% 15% 12%
"""

import copy
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.complexity_tap import ComplexityTap
from lab.figures import saved_figure
from lab.kernel_analysis import split_loader
from lab.machine import machine_info
from lab.rank_correlation import spearman, spearman_interval
from mmkcr.apis.compress_files import task_outputs
from mmkcr.cli.command import Parser, add_options_argument, add_trust_argument, command, quiet_hosts
from mmkcr.closed_form.compression import compress
from mmkcr.closed_form.images import calibration_images
from mmkcr.core import atomic_write, block_of
from mmkcr.engine.build import build_model, default_shape, load_config, load_weights
from mmkcr.models.counting import count_macs
from mmkcr.visualization import format_table, shown

#: What may tell (of the training set), and what is lost (on the test set).
PREDICTORS = dict(kc='KC', a_kc='A-KC', difference='outputs differ', macs='MACs')
LOSSES = dict(loss='cross entropy', wrong='error rate')


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of a dense classifier')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--budgets', nargs='+', default=['30%', '20%', '15%', '12%'],
                        metavar='TARGET', help='MACs that blocks are from (%(default)s)')
    parser.add_argument('--subnets', type=int, default=60, help='that are drawn (%(default)s)')
    parser.add_argument('--images', type=int, default=300, help='of calibration (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of all that is drawn (%(default)s)')
    parser.add_argument('--out', default='work_dirs/kc_correlation',
                        help='folder of the results (%(default)s)')
    add_options_argument(parser)
    add_trust_argument(parser)
    return parser


def samples(config: Config, model: nn.Module, split: str) -> tuple[list[Tensor], Tensor]:
    """Batches of images as the model takes them, and all labels."""
    batches, labels = [], []
    for batch in split_loader(config, split):
        given = model.data_preprocessor(batch, False)
        batches.append(given['inputs'])
        labels += [int(sample.gt_label) for sample in given['data_samples']]
    return batches, torch.tensor(labels)


@torch.no_grad()
def logits_of(model: nn.Module, batches: Sequence[Tensor]) -> Tensor:
    """Class scores of all images."""
    return torch.cat([model(batch, mode='tensor') for batch in batches])


def measure(args: Any) -> list[dict[str, Any]]:
    """One row per subnet; the first is the dense network."""
    config = load_config(args.config, args.cfg_options)
    model = build_model(config)
    load_weights(model, args.checkpoint)
    (train, _), (test, labels) = (samples(config, model, split) for split in ('train', 'val'))
    loaded = calibration_images(config, model, None, args.images, args.seed)
    images = list(loaded.of_size(64))
    shape, slim, profiles = default_shape(config, model), [], None
    for budget in args.budgets:
        slim.append(compress(model, images, budget, None, shape, None, task_outputs, images[:1],
                             profiles, logits=True, seed=args.seed))
        profiles = slim[0].profiles
    blocks = list(dict.fromkeys(block_of(name.rpartition('.')[0]) for name in profiles))
    networks = [model, *(result.model for result in slim)]
    dense = logits_of(model, train)
    generator, rows = np.random.default_rng(args.seed), []
    drawn = generator.integers(0, len(networks), (args.subnets, len(blocks)))
    for origins in shown(np.concatenate([0 * drawn[:1], drawn]), 'Subnets'):
        network = copy.deepcopy(model)
        for block, origin in zip(blocks, origins):
            network.backbone.set_submodule(block, copy.deepcopy(
                networks[origin].backbone.get_submodule(block)))
        with ComplexityTap(network.backbone, every=10) as tap:
            difference = (logits_of(network, train) - dense).norm() / dense.norm()
        scores = logits_of(network, test)
        rows.append(dict(
            networks=origins.tolist(), macs=count_macs(network, shape), **tap.values(),
            difference=float(difference), loss=float(F.cross_entropy(scores, labels)),
            wrong=100 * float((scores.argmax(1) != labels).float().mean())))
    return rows


def correlations(rows: Sequence[Mapping[str, Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Of every predictor with every loss, over all subnets and within quarters of the MACs."""
    macs = np.array([row['macs'] for row in rows])
    quarters = np.searchsorted(np.quantile(macs, [.25, .5, .75]), macs)
    found = []
    for predictor in PREDICTORS:
        for lost in LOSSES:
            values = [[row[key] for row in rows] for key in (predictor, lost)]
            for where, within in (('all', None), ('quarters of MACs', quarters)):
                low, high = spearman_interval(*values, within, 2000, seed=seed)
                found.append(dict(predictor=predictor, lost=lost, over=where, low=low, high=high,
                                  rho=spearman(*values, within)))
    return found


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Loss over KC, coloured by MACs."""
    with saved_figure(path, (6, 4)) as (figure, axes):
        dots = axes.scatter([row['kc'] for row in rows], [row['loss'] for row in rows], s=12,
                            c=[row['macs'] / 1e6 for row in rows])
        figure.colorbar(dots, label='MACs (M)')
        axes.set_xlabel('KC of the training features')
        axes.set_ylabel('cross entropy, test set')


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if args.subnets < 8:
        raise ValueError(f'expected at least 8 `--subnets`, found {args.subnets}')
    rows = measure(args)
    found = correlations(rows[1:], args.seed)
    cells = [(PREDICTORS[one['predictor']], LOSSES[one['lost']], one['over'], f'{one["rho"]:+.2f}',
              f'{one["low"]:+.2f} to {one["high"]:+.2f}') for one in found]
    print(format_table(('of', 'with', 'over', "Spearman's rho", '95 % interval'), cells))
    out = Path(args.out)
    with atomic_write(out / 'kc_correlation.json') as path:
        path.write_text(json.dumps(dict(
            config=args.config, images=args.images, budgets=args.budgets, seed=args.seed,
            machine=machine_info(), correlations=found, rows=rows)) + '\n')
    plot(rows[1:], out / 'kc_correlation.png')
    print(f'Wrote {out / "kc_correlation.json"} and {out / "kc_correlation.png"}, '
          f'{len(rows) - 1} subnets')


if __name__ == '__main__':
    main()
