"""Whether kernel complexity tells which subnets lose: rank correlation over many subnets.

Builds subnets of a dense classifier in closed form (`mmkcr compress`) with random allocations at
several budgets, measures KC and A-KC of their features on the training set and what they lose on
the test set, and prints Spearman's correlations with bootstrap intervals: over all subnets, and
within budgets (what MACs alone would tell is left out).

Examples:
    python tools/analysis_tools/kc_correlation.py CONFIG CHECKPOINT --budgets 30% 20% 15% 12%
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import torch
from mmengine.config import DictAction
from torch.utils.data import DataLoader

from mmkcr.apis.build import build_model, default_shape, load_config, load_weights
from mmkcr.apis.calibration_data import calibration_images
from mmkcr.apis.cli import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.apis.compress import compress
from mmkcr.apis.compress_files import task_outputs
from mmkcr.apis.machine import machine_info
from mmkcr.apis.site_profiles import SiteProfile
from mmkcr.core import atomic_write
from mmkcr.evaluation.analysis import classification_scores, kernel_statistics, split_loader
from mmkcr.functional.rank_correlation import spearman, spearman_interval
from mmkcr.visualization import format_table, shown
from mmkcr.visualization.figures import saved_figure

#: What may tell (of the training set), and what is lost (on the test set).
PREDICTORS = dict(kc='KC', a_kc='A-KC', tnn='TNN', error='outputs differ', macs='MACs')
LOSSES = dict(loss='cross entropy', wrong='error rate')


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of a dense classifier')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--budgets', nargs='+', default=['30%', '20%', '15%', '12%'],
                        metavar='TARGET', help='MACs of subnets (%(default)s)')
    parser.add_argument('--draws', type=int, default=15,
                        help='subnets of each budget (%(default)s)')
    parser.add_argument('--spread', type=float, default=2.,
                        help='allocations are those of losses times exp(SPREAD x normal) by site '
                        '(%(default)s)')
    parser.add_argument('--images', type=int, default=300, help='of calibration (%(default)s)')
    parser.add_argument('--seed', type=int, default=0, help='of all that is drawn (%(default)s)')
    parser.add_argument('--out', default='work_dirs/kc_correlation',
                        help='folder of the results (%(default)s)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction,
                        help='entries of the config to overwrite: key=value')
    add_trust_argument(parser)
    return parser


class Kept(list):
    """Batches of a loader in memory.

    Args:
        loader (DataLoader): Read once.
    """

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader)
        self.dataset = loader.dataset


def at_random(profiles: Mapping[str, SiteProfile], spread: float,
              generator: torch.Generator) -> Dict[str, SiteProfile]:
    """Profiles whose sites count more or less: they give another allocation."""
    return {name: dataclasses.replace(profile, losses=profile.losses * math.exp(
        spread * float(torch.randn((), generator=generator))))
        for name, profile in profiles.items()}


def measure(args: Any) -> List[Dict[str, Any]]:
    """One row per subnet; the first is the dense network."""
    config = load_config(args.config, args.cfg_options)
    model = build_model(config)
    load_weights(model, args.checkpoint)
    train, test = (Kept(split_loader(config, split)) for split in ('train', 'val'))
    loaded = calibration_images(config, model, None, args.images, 64, args.seed)
    images = [loaded[place] for place in range(len(loaded))]
    shape, generator = default_shape(config, model), torch.Generator().manual_seed(args.seed)

    def subnet(target: Any, profiles: Any) -> Any:
        return compress(model, images, target, None, shape, None, task_outputs, images[:1],
                        profiles, logits=True, progress=False, seed=args.seed)

    def row(network: torch.nn.Module, **known: Any) -> Dict[str, Any]:
        scores = classification_scores(network, test)
        return dict(known, **kernel_statistics(network, train), loss=scores['loss'],
                    wrong=100 - scores['top1'])

    profiles = subnet(args.budgets[0], None).profiles
    rows = [row(model, budget='dense', macs=1., error=0.)]
    for budget in args.budgets:
        for _ in shown(range(args.draws), f'Subnets of {budget}'):
            found = subnet(budget, at_random(profiles, args.spread, generator))
            macs = found.structure.macs
            rows.append(row(found.model, budget=budget, macs=macs['subnet'] / macs['dense'],
                            error=found.agreement['error'], sizes=found.structure.sizes()))
    return rows


def correlations(rows: Sequence[Mapping[str, Any]], seed: int = 0) -> List[Dict[str, Any]]:
    """Of every predictor with every loss, over all subnets and within budgets."""
    budgets = [row['budget'] for row in rows]
    groups = [budgets.index(budget) for budget in budgets]
    found = []
    for predictor in PREDICTORS:
        for lost in LOSSES:
            values = [[row[key] for row in rows] for key in (predictor, lost)]
            for where, within in (('all', None), ('within budgets', groups)):
                low, high = spearman_interval(*values, within, seed=seed)
                found.append(dict(predictor=predictor, lost=lost, over=where, low=low, high=high,
                                  rho=spearman(*values, within)))
    return found


def plot(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Loss over KC, a colour for each budget."""
    with saved_figure(path, (6, 4)) as (_, axes):
        for budget in dict.fromkeys(row['budget'] for row in rows):
            own = [row for row in rows if row['budget'] == budget]
            axes.plot([row['kc'] for row in own], [row['loss'] for row in own], 'o', markersize=3,
                      label=budget)
        axes.set_xlabel('KC of the training features')
        axes.set_ylabel('cross entropy, test set')
        axes.legend(fontsize=8)


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if args.draws < 2 or args.spread <= 0:
        raise ValueError('expected at least 2 `--draws` and a positive `--spread`, found '
                         f'{args.draws} and {args.spread}')
    rows = measure(args)
    found = correlations(rows[1:], args.seed)
    cells = [(PREDICTORS[one['predictor']], LOSSES[one['lost']], one['over'], f'{one["rho"]:+.2f}',
              f'{one["low"]:+.2f} to {one["high"]:+.2f}') for one in found]
    print(format_table(('of', 'with', 'over', "Spearman's rho", '95 % interval'), cells))
    out = Path(args.out)
    with atomic_write(out / 'kc_correlation.json') as path:
        path.write_text(json.dumps(dict(
            config=args.config, images=args.images, draws=args.draws, spread=args.spread,
            seed=args.seed, machine=machine_info(), correlations=found, rows=rows), indent=1)
            + '\n')
    plot(rows[1:], out / 'kc_correlation.png')
    print(f'Wrote {out / "kc_correlation.json"} and {out / "kc_correlation.png"}, '
          f'{len(rows) - 1} subnets')


if __name__ == '__main__':
    main()
