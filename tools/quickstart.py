"""KCR-Transformer on real digits, start to end, in minutes on two cores.

A small ViT and a small Swin: train the dense model; search channels; slim to
80 % of the MACs; retrain from the inherited weights, without and with the KCR
term; evaluate. Search and retraining together have as many epochs as the dense
model. Prints a table; writes summary.json, table.txt and plots to the work dir.

A second call reuses what is finished, and goes on where one was stopped.

Examples:
    python tools/quickstart.py --work-dir work_dirs/quickstart
    python tools/quickstart.py --work-dir work_dirs/quickstart --seeds 0 1 2
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Optional, Sequence

from lab.digits import write_digits
from lab.quickstart import Pipeline
from lab.quickstart_config import QuickstartOptions
from lab.quickstart_jobs import measure_latencies, run_pipelines
from lab.quickstart_report import plot_all, summarise, table, verdict, write_summary
from lab.run_settings import add_run_arguments, check_run_arguments, check_target
from mmkcr.apis.cli import Parser, command, quiet_hosts
from mmkcr.core import atomic_write, locked

CONFIGS = Path(__file__).resolve().parents[1] / 'configs'


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--work-dir', default='work_dirs/quickstart',
                        help='folder for everything that is written (%(default)s)')
    parser.add_argument('--archs', nargs='+', default=['vit-mini', 'swin-mini'],
                        choices=['vit-mini', 'swin-mini'], help='networks (both)')
    parser.add_argument('--target-macs', default=0.8, metavar='TARGET',
                        help='as of tools/slim.py (%(default)s of the dense model)')
    parser.add_argument('--divisor', type=int, default=8, help='as of tools/slim.py (%(default)s)')
    add_run_arguments(parser)
    return parser


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Run, print, write and draw."""
    args = make_parser().parse_args(argv)
    check_run_arguments(args)
    quiet_hosts()
    began, folder = time.perf_counter(), Path(args.work_dir)
    options = QuickstartOptions(args.work_dir, str(CONFIGS), args.data_root, args.target_macs,
                                args.divisor, args.epochs_factor, args.train_slice)
    for arch in args.archs:
        check_target(Pipeline(arch, 0, options).config_file('search'), args.target_macs,
                     args.divisor)
    if not Path(args.data_root).exists():
        write_digits(args.data_root)
    with locked(folder):
        jobs = [(arch, seed) for seed in args.seeds for arch in args.archs]
        results = run_pipelines(jobs, options, args.jobs)
        rows = summarise(results, measure_latencies(results, options))
        text = '\n'.join([table(rows), *verdict(rows)])
        asked = {**asdict(options), 'configs': 'configs', 'seeds': args.seeds}
        seconds = round(time.perf_counter() - began, 1)
        write_summary(folder, rows, results, asked, verdict=verdict(rows),
                      seconds_of_this_call=seconds)
        with atomic_write(folder / 'table.txt') as path:
            path.write_text(text + '\n')
        plots = plot_all(folder, rows, results)
    print(f'\n{text}\n{seconds:.0f} s; summary.json, table.txt and {len(plots)} plots: {folder}')


if __name__ == '__main__':
    main()
