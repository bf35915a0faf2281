"""Kernel complexity, TNN and KCR bounds of a classifier, or of a run's checkpoints.

One streaming pass per checkpoint over the training and the validation set, in
eval mode with test transforms; works with any mmpretrain classifier. Prints a
table; writes OUT.json and, of several checkpoints, the curves OUT.png: figure 1
of the paper, the squared error of both sets against the bounds that follow from
the training set. KC depends on n: compare values of equal n only.

Example:
  python tools/analysis_tools/kernel_complexity.py CONFIG epoch_10.pth epoch_20.pth
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.figures import saved_figure
from lab.kernel_analysis import (
    kernel_statistics,
    split_loader,
    step_of,
    training_steps,
)
from lab.palette import SERIES
from mmkcr.cli.command import Parser, add_options_argument, add_trust_argument, command
from mmkcr.core.io import atomic_write
from mmkcr.engine.build import build_model, load_config, load_weights

COLUMNS = ('n', 'landmarks', 'kc', 'a_kc', 'tnn', 'squared_error', 'kcr_lower', 'kcr_upper')


def parse_args(argv: Sequence[str] | None):
    """Parses the command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of a classifier')
    parser.add_argument('checkpoints', nargs='+', metavar='checkpoint', help='its checkpoints')
    parser.add_argument('--split', choices=('both', 'train', 'val'), default='both',
                        help='samples (default: %(default)s)')
    parser.add_argument('--landmarks', type=int, help='expected number of landmarks of A-KC '
                        "(default: a tenth of n, at most the paper's 50000)")
    parser.add_argument('--form', choices=('projection', 'sample'), default='projection',
                        help="approximate TNN of A-KC: the loss's or the paper's "
                        '(default: %(default)s)')
    parser.add_argument('--layer', help='layer whose pooled output is the feature (default: '
                        'the feature_layer of the config, or what the classifier reads)')
    parser.add_argument('--rank-ratio', type=float, default=0.2,
                        help='gamma0 of the TNN (default: %(default)s)')
    parser.add_argument('--device', default='cpu', help='device (default: %(default)s)')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/kernel_complexity'),
                        help='path of the results without suffix (default: %(default)s)')
    add_options_argument(parser)
    add_trust_argument(parser)
    return parser.parse_args(argv)


def measure(args) -> list[dict[str, Any]]:
    """One row per checkpoint and split, in the order of the training."""
    config = load_config(args.config, args.cfg_options)
    model = build_model(config)
    unit, steps = training_steps([load_weights(model, path).get('meta') or {}
                                  for path in args.checkpoints])
    splits = ('train', 'val') if args.split == 'both' else (args.split, )
    loaders, rows = {split: split_loader(config, split) for split in splits}, []
    for path, step in sorted(zip(args.checkpoints, steps), key=lambda pair: pair[1]):
        load_weights(model, path)
        for split, loader in loaders.items():
            values = kernel_statistics(model.to(args.device), loader, args.layer, args.landmarks,
                                       progress=True, form=args.form, rank_ratio=args.rank_ratio)
            rows.append({'checkpoint': str(path), unit: step, 'split': split, **values})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ['| ' + ' | '.join(['checkpoint', step_of(rows[0])[0], 'split', *COLUMNS]) + ' |',
             '|' + '---|' * (3 + len(COLUMNS))]
    for row in rows:
        cells = [Path(row['checkpoint']).name, str(step_of(row)[1]), row['split']]
        cells += [f'{row[name]:.5g}' if name in row else '' for name in COLUMNS]
        lines.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def plot_bounds(rows: Sequence[Mapping[str, Any]], path: str | Path,
                title: str = '') -> None:
    """Draw the expected losses over a training against the training set's bounds (KCR figure 1).

    Left: the squared error of training and of validation images, and the bounds that the theorem
    gives from the training set, its squared error -/+ A-KC -/+ x/n (and the same with KC). Right:
    KC and A-KC, of the training set where it was measured. A split without rows is left out, and
    without the training set there are no bounds.

    Args:
        rows (Sequence[Mapping]): One per checkpoint and split: ``split`` ('train' or 'val'),
            ``epoch`` or ``iteration``, and :func:`kernel_statistics`.
        path (str | Path): Image to write.
        title (str): Heading. Defaults to none.
    """
    with saved_figure(path, (9, 3.6), ncols=2) as (figure, (left, right)):
        found = {split: [row for row in rows if row['split'] == split]
                 for split in ('train', 'val')}
        trained = found['train']
        steps = [step_of(row)[1] for row in trained]
        for name, label, color in (('kcr', 'KC', SERIES[0]), ('a_kcr', 'A-KC', SERIES[4])):
            if trained and all(f'{name}_upper' in row for row in trained):
                left.fill_between(steps, [row[f'{name}_lower'] for row in trained],
                                  [row[f'{name}_upper'] for row in trained], alpha=0.25,
                                  color=color, label=f'KCR bounds of the training set, {label}')
        for split, label, color in (('train', 'training images', SERIES[1]),
                                    ('val', 'validation images', SERIES[2])):
            if found[split] and all('squared_error' in row for row in found[split]):
                left.plot([step_of(row)[1] for row in found[split]],
                          [row['squared_error'] for row in found[split]], '.-', color=color,
                          label=f'squared error, {label}')
        shown_rows = trained or found['val']
        for name, label in (('kc', 'KC'), ('a_kc', 'A-KC')):
            if all(name in row for row in shown_rows):
                right.plot([step_of(row)[1] for row in shown_rows],
                           [row[name] for row in shown_rows], '.-', label=label)
        for axes in (left, right):
            axes.set_xlabel(step_of(rows[0])[0])
            axes.legend()
        right.set_title('of the training set' if trained else 'of the validation set')
        right.set_ylim(bottom=0)
        figure.suptitle(title)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    args = parse_args(argv)
    rows = measure(args)
    print('\n' + table(rows))
    with atomic_write(args.out.with_suffix('.json')) as path:
        path.write_text(json.dumps(rows, indent=2) + '\n')
    if len(args.checkpoints) > 1:
        plot_bounds(rows, args.out.with_suffix('.png'), Path(args.config).stem)


if __name__ == '__main__':
    main()
