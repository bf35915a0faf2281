"""A table of the time that a network's sites cost at some sizes, for budgets of time.

Made once for a machine, runtime, number of threads and batch size; a call that was stopped goes on
where it was. Measured in turns with the dense network, exported in the same way.

Examples:
    python tools/benchmarks/latency_table.py CONFIG --runtime openvino --out table.json
    python tools/compress.py CONFIG CHECKPOINT --target-latency 12ms --latency-table table.json
    python tools/benchmarks/latency_table.py CONFIG --runtime onnxruntime --threads 1 --batch 1
    python tools/compress.py CONFIG CHECKPOINT --target-latency 12ms --runtime onnxruntime \\
        --threads 1 --batch 1
"""

import contextlib
import sys
from pathlib import Path
from typing import Optional, Sequence

import torch

from mmkcr.apis.build import build_model, default_shape, dense_config, image_shape, load_config
from mmkcr.apis.cli import Parser, add_options_argument, command, quiet_hosts
from mmkcr.apis.latency import RUNTIMES
from mmkcr.apis.latency_table import TableSettings, measure_table, table_path
from mmkcr.core import load_table
from mmkcr.core.latency import milliseconds
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='of a dense model or a search')
    parser.add_argument('--sites', nargs='+', metavar='KIND',
                        help='default: those of a search of the backbone, else those that '
                        'tools/compress.py would take')
    parser.add_argument('--runtime', choices=RUNTIMES, default='onnxruntime', help='(%(default)s)')
    parser.add_argument('--threads', type=int, default=1, help='(%(default)s)')
    parser.add_argument('--batch-size', '--batch', type=int, default=1, help='(%(default)s)')
    parser.add_argument('--part', choices=('model', 'backbone'),
                        help='what is timed; default: as of tools/compress.py')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help="height and width, or one number for both; default: the config's")
    parser.add_argument('--divisor', type=int, default=8, help='of the sizes (%(default)s)')
    parser.add_argument('--repeats', type=int, default=15, help='pairs (%(default)s)')
    parser.add_argument('--out', metavar='FILE',
                        help='(work_dirs/latency_tables/<config name>_<runtime>_threads<N>_'
                        'batch<N>_<hardware>.json, where --target-latency looks for it)')
    add_options_argument(parser)
    return parser


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, write and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if min(args.threads, args.batch_size, args.repeats, args.divisor) < 1:
        raise ValueError('expected threads, a batch size, repeats and a divisor of at least 1, '
                         f'found {args.threads}, {args.batch_size}, {args.repeats} and '
                         f'{args.divisor}')
    config = load_config(args.config, args.cfg_options)
    config = dense_config(config)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        model = build_model(config)
    model.eval()
    shape = image_shape(args.shape) if args.shape else default_shape(config, model)
    classifies = config.get('default_scope', 'mmpretrain') == 'mmpretrain'
    part = args.part or (None if classifies else 'backbone')
    settings = TableSettings(args.runtime, args.threads, args.batch_size, shape, part)
    path = Path(args.out) if args.out else table_path(args.config, args.runtime, args.threads,
                                                      args.batch_size)
    for line in measure_table(model, path, settings, args.sites, args.divisor, args.repeats):
        print(line, flush=True)
    table = load_table(path)
    rows = [(entry['sites'][0], len(entry['sites']), f'{size} of {entry["total"]}',
             f'{change / 1e6:+.3f}')
            for entry in table.classes for size, change in entry['changes'].items()]
    print(format_table(('site', 'such sites', 'units', 'ms each'), rows))
    print(f'Dense: {milliseconds(table.dense)}. Wrote {path}')


if __name__ == '__main__':
    main()
