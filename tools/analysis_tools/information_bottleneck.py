"""Test loss and information bottleneck of classifiers over a training (DCS, figure 3).

For every checkpoint of every run: cross entropy and top-1 on the validation set; I(X~, X),
I(X~, Y), IB and its bound on --split, of what the classifier reads. Prints a table; writes
information_bottleneck.json and, of runs with several checkpoints, test_loss.png and ib.png.

Example:
    python tools/analysis_tools/information_bottleneck.py \\
        --run dense DENSE.py work_dirs/dense/epoch_*.pth --run DCS DCS.py work_dirs/dcs/epoch_*.pth
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.figures import saved_figure
from lab.kernel_analysis import classification_scores, split_loader, step_of, training_steps
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.core import atomic_write
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.evaluation.features import feature_layer_of
from mmkcr.methods.dcs.information_bottleneck import information_statistics
from mmkcr.models.tasks import find_task
from mmkcr.visualization import format_table, show_progress

COLUMNS = ('loss', 'top1', 'i_inputs', 'i_labels', 'ib', 'ibb')


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--run', dest='runs', nargs='+', action='append', required=True,
                        metavar='X', help='a name, a config and its checkpoints; once a run')
    parser.add_argument('--split', choices=('train', 'val'), default='train',
                        help='samples of the information (%(default)s)')
    parser.add_argument('--device', default='cpu', help='device (%(default)s)')
    parser.add_argument('--out', default='work_dirs/analysis', metavar='DIR',
                        help='folder of figures and numbers (%(default)s)')
    parser.add_argument('--format', default='png', choices=('png', 'pdf', 'svg'),
                        help='kind of figure (%(default)s)')
    add_trust_argument(parser)
    return parser


def measure(name: str, config: str, checkpoints: Sequence[str], args: Any) -> list[dict[str, Any]]:
    """One row a checkpoint, in the order of the training."""
    settings = load_config(config)
    model, rows, metas, loaders = build_model(settings).to(args.device), [], [], None
    for path in show_progress(checkpoints, name):
        metas.append(load_weights(model, path).get('meta') or {})
        # after the first weights, which are refused in no time
        loaders = loaders or [split_loader(settings, name) for name in (args.split, 'val')]
        known, tested = loaders
        rows.append(dict(
            checkpoint=Path(path).name, split=args.split, **classification_scores(model, tested),
            **information_statistics(model, known, find_task(model).head.num_classes,
                                     feature_layer_of(model))))
    unit, steps = training_steps(metas)
    rows = [{'run': name, unit: step, **row} for step, row in zip(steps, rows)]
    return sorted(rows, key=lambda row: row[unit])


def unit_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the runs count: ``'epoch'``, ``'iteration'``, or both."""
    return ' or '.join(sorted({step_of(row)[0] for row in rows}))


def plot(rows: Sequence[dict[str, Any]], folder: Path, suffix: str) -> list[Path]:
    """Curves of the runs that have more than one checkpoint."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row['run'], []).append(row)
    runs = {name: found for name, found in runs.items() if len(found) > 1}
    paths = []
    for key, label in (('loss', 'test_loss'), ('ib', 'ib')) if runs else ():
        paths.append(folder / f'{label}.{suffix}')
        with saved_figure(paths[-1], (7, 4)) as (_, axes):
            for name, found in runs.items():
                axes.plot([step_of(row)[1] for row in found], [row[key] for row in found],
                          label=name)
            axes.set(xlabel=unit_of(rows), ylabel=label.replace('_', ' ') + ' (nats)')
            axes.grid(alpha=0.3)
            axes.legend(fontsize='small')
    return paths


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write and draw."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    names = [run[0] for run in args.runs]
    if min(map(len, args.runs)) < 3 or len(set(names)) < len(names):
        raise ValueError('expected a name of its own, a config and at least one checkpoint of '
                         f'every `--run`, found {args.runs}')
    rows = [row for name, config, *checkpoints in args.runs
            for row in measure(name, config, checkpoints, args)]
    cells = [[row['run'], step_of(row)[1], *(f'{row[key]:.4f}' for key in COLUMNS)]
             for row in rows]
    folder = Path(args.out)
    with atomic_write(folder / 'information_bottleneck.json') as path:
        path.write_text(json.dumps(rows, indent=1) + '\n')
    figures = plot(rows, folder, args.format)
    print(format_table(('run', unit_of(rows), *COLUMNS), cells))
    print(f'information_bottleneck.json and {len(figures)} figures: {folder}')


if __name__ == '__main__':
    main()
