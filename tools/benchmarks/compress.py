"""Closed-form slimming against random units, weight norm and variance, at equal budgets.

Every checkpoint is one seed of the same dense network. Prints a table, and writes it with a plot
of the metric over MACs.

Examples:
    python tools/benchmarks/compress.py configs/kcr/digits/kcr-dense_vit-mini_1xb64_digits.py \\
        work_dirs/kcr-dense_vit-mini_1xb64_digits/epoch_48.pth --images 300 \\
        --targets 0.69 0.53 0.46 --metric accuracy/top1
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.compress_study import ANYWHERE, VARIANTS, Subject, study
from lab.figures import saved_figure
from lab.machine import machine_info
from lab.palette import SERIES
from mmkcr.cli.command import Parser, add_options_argument, add_trust_argument, command, quiet_hosts
from mmkcr.closed_form.options import check_kinds
from mmkcr.core import atomic_write
from mmkcr.engine.build import load_config
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the dense model')
    parser.add_argument('checkpoints', nargs='+', help='its weights, one file a seed')
    parser.add_argument('--targets', type=float, nargs='+', default=[0.8, 0.7, 0.55, 0.47, 0.33],
                        help='shares of the dense MACs (%(default)s)')
    parser.add_argument('--variants', nargs='+', choices=list(VARIANTS), default=list(ANYWHERE),
                        help='ways to choose and refit (all but Torch-Pruning, for a ViT of timm)')
    parser.add_argument('--metric', required=True,
                        help='such as accuracy/top1, coco/bbox_mAP, mIoU')
    parser.add_argument('--sites', nargs='+', help='kinds of site (those of compress)')
    parser.add_argument('--images', type=int, default=300, help='of calibration (%(default)s)')
    parser.add_argument('--held-out', type=int, default=0,
                        help='further images, for the relative error of the outputs (none)')
    parser.add_argument('--part', choices=('model', 'backbone'),
                        help='whose MACs (backbone of a detector or segmentor, else model)')
    parser.add_argument('--out', help='folder (work_dirs/benchmarks/compress_<config name>)')
    add_options_argument(parser)
    add_trust_argument(parser)
    return parser


def plot(rows: list[dict[str, Any]], metric: str, path: Path) -> None:
    """Metric over MACs, a line a variant, with the seeds' spread."""
    with saved_figure(path, (9, 4.5)) as (figure, axes):
        dense = rows[0]['mean']
        axes.axhline(dense, color='0.4', linestyle='--', linewidth=1, label='dense')
        for index, variant in enumerate(dict.fromkeys(row['variant'] for row in rows[1:])):
            own = [row for row in rows if row['variant'] == variant]
            again, color = divmod(index, len(SERIES) - 1)  # more variants than colours
            axes.errorbar([100 * row['macs'] for row in own], [row['mean'] for row in own],
                          [row['spread'] for row in own], marker='o', markersize=3, capsize=2,
                          color=SERIES[1 + color], linestyle=':' if again else '-',
                          label=VARIANTS[variant].label)
        axes.set_xlabel('MACs (% of dense)')
        axes.set_ylabel(metric)
        figure.legend(fontsize=8, loc='outside right upper')  # never over the lines


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    check_kinds(args.sites or ())
    subjects = []
    for seed, checkpoint in enumerate(args.checkpoints):
        config = load_config(args.config, args.cfg_options)
        subjects.append(Subject(config, checkpoint, args.images, seed, args.sites,
                                args.part, args.held_out))
    rows = study(subjects, args.variants, args.targets, args.metric,
                 lambda row: print(row, file=sys.stderr))
    cells = [(VARIANTS[row['variant']].label if row['variant'] in VARIANTS else 'dense',
              f'{row["macs"]:.1%}', f'{row["mean"]:.4g}', f'{row["spread"]:.2g}') for row in rows]
    print(format_table(('', 'MACs', args.metric, 'spread'), cells, Path(args.config).stem))
    out = Path(args.out or f'work_dirs/benchmarks/compress_{Path(args.config).stem}')
    with atomic_write(out / 'compress.json') as path:
        path.write_text(json.dumps(dict(
            config=args.config, images=args.images, sites=args.sites, metric=args.metric,
            seeds=len(subjects), machine=machine_info(), rows=rows), indent=1) + '\n')
    plot(rows, args.metric, out / 'compress.png')
    print(f'Wrote {out / "compress.json"} and {out / "compress.png"}')


if __name__ == '__main__':
    main()
