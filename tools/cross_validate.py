"""Cross-validate hyper-parameters on a share of the training set (KCR v2, section 4.1).

Every fold is trained on its part and validated on the part that it holds out,
with the validation transforms; the validation set is never touched. Finished
folds are kept and an interrupted one goes on: run the same command again.

Presets: lambda (price, 10 %), eta (KCR's weight, 10 %), warmup (t_warm, 10 %),
rank (gamma0, 20 % of the training set).

Examples:
    python tools/cross_validate.py CONFIG --preset lambda
    python tools/cross_validate.py CONFIG --grid model.price.weight=0.1:0.5:0.05 --fraction 0.1
    python tools/cross_validate.py CONFIG --grid 'custom_hooks[WarmupSwitchHook].begin=30,60,90'
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config

from lab.cross_validate import Score, best, cross_validate
from lab.folds import Deal
from lab.grids import PRESETS, parse_grid, preset_grid
from mmkcr.cli.command import Parser, add_options_argument, command, quiet_hosts
from mmkcr.core import atomic_write
from mmkcr.engine.build import load_config, run_folder
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='training config, with a classification data set')
    parser.add_argument('--grid', action='append', default=[], metavar='PATH=VALUES',
                        help='first:last:step or a,b,c; several grids are combined (none)')
    parser.add_argument('--preset', action='append', default=[], choices=sorted(PRESETS),
                        help="the paper's grids; several are combined (none)")
    parser.add_argument('--folds', type=int, default=5, help='(%(default)s)')
    parser.add_argument('--fraction', type=float,
                        help='share of the training set (0.1, or that of the preset)')
    parser.add_argument('--seed', type=int, default=0, help='of share and folds (%(default)s)')
    parser.add_argument('--metric', help='such as accuracy/top1; default: the first one')
    parser.add_argument('--minimize', action='store_true', help='a lower metric is better')
    parser.add_argument('--work-dir', metavar='DIR',
                        help='folder of results and runs (work_dirs/<config name>/'
                        'cross_validation)')
    add_options_argument(parser)
    return parser


def read_grids(config: Config, grids: Sequence[str], presets: Sequence[str]) -> dict[str, list]:
    """Values by path of ``--grid`` and ``--preset``.

    Raises:
        ValueError: A path is given twice.
    """
    given = [parse_grid(text) for text in grids]
    given += [preset_grid(name, config) for name in presets]
    if len(dict(given)) < len(given):
        raise ValueError('expected every path of the grids once, found '
                         f'{[path for path, _ in given]}')
    return dict(given)


def print_table(scores: Sequence[Score], top: Score) -> None:
    """Print one row a combination, the best one marked."""
    columns = (*(path for path in top.values), 'mean', 'std',
               *(f'fold {number}' for number in range(len(top.folds))), 'best')
    rows: list[list[Any]] = [[
        *score.values.values(), f'{score.mean:.3f}', f'{score.std:.3f}',
        *(f'{value:.3f}' for value in score.folds), '*' if score is top else ''
    ] for score in scores]
    print(format_table(columns, rows))


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run what is left of the study, and print it."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    config = load_config(args.config, args.cfg_options)
    grids = read_grids(config, args.grid, args.preset)
    fraction = args.fraction
    if fraction is None:
        fraction = max((PRESETS[name].fraction for name in args.preset), default=0.1)
    work_dir = Path(args.work_dir or run_folder(config, args.config) / 'cross_validation')
    scores = cross_validate(config, grids, work_dir, Deal(fraction, args.folds, args.seed),
                            args.metric)
    top = best(scores, args.minimize)
    print_table(scores, top)
    chosen = ', '.join(f'{path} = {value}' for path, value in top.values.items())
    print(f'Best: {chosen} ({top.mean:.3f} +- {top.std:.3f} over {args.folds} folds)')
    summary = dict(best=top._asdict(), scores=[score._asdict() for score in scores])
    with atomic_write(work_dir / 'summary.json') as temporary:
        temporary.write_text(json.dumps(summary, indent=1), encoding='utf8')


if __name__ == '__main__':
    main()
