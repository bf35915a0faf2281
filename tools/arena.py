"""The arena: searches against simple controls, at equal MACs and equal total training.

For every seed and budget: the dense network, a narrower one from scratch, random units, units by
weight norm, by variance, the closed-form refit, and the searches of KCR, DCS and OFB with and
without their regularisers; --methods has more, that were tried. Prints accuracies before and after
retraining and the 95 % intervals of the paired differences to random units and to the refit; writes
table.txt, table.md, summary.json and accuracy_over_macs.png to the work dir.

A second call goes on with what is not finished; with --report it only reads what is.

Examples:
    python tools/arena.py --task digits-300 --budgets 0.7 0.5 0.3 --seeds 0 1 2
    python tools/arena.py --task digits-300 --report --to dense narrow
    python tools/arena.py --task scenes --methods random refit kcr-warm ofb-plain
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path

from lab.arena import arena_study, equal_batches, write_study_file
from lab.arena_methods import METHODS, main_methods
from lab.arena_report import read_rows, summarise, table, write_report
from lab.arena_tasks import TASKS
from lab.run_settings import check_factor
from lab.stages import RECORD
from lab.study import Study, StudyOptions
from lab.study_pipeline import StudyPipeline
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import locked


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--task', choices=list(TASKS), default='digits-300', help='(%(default)s)')
    parser.add_argument('--net', help="network of tools/lab/arena_stages (the task's)")
    parser.add_argument('--budgets', type=float, nargs='+', default=[0.7, 0.6, 0.5, 0.4, 0.3],
                        metavar='SHARE', help='of the dense MACs (%(default)s)')
    parser.add_argument('--methods', nargs='+', choices=list(METHODS), metavar='METHOD',
                        help='(those of the first table that the network has configs for) all: '
                        f'{", ".join(METHODS)}')
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2, 3, 4], metavar='N',
                        help='of data, weights and units (%(default)s)')
    parser.add_argument('--train-slice', action='store_true',
                        help='measure on a fifth of the training digits, which is then not trained '
                        'on: to choose hyper-parameters without a look at the held-out images')
    parser.add_argument('--epochs-factor', type=float, default=1., metavar='X',
                        help='stretch all schedules (%(default)s)')
    parser.add_argument('--work-dir', help='folder for everything that is written '
                        '(work_dirs/arena/<task>, with --train-slice <task>_slice)')
    parser.add_argument('--to', nargs='+', choices=['dense', *METHODS], default=[],
                        metavar='METHOD',
                        help='more methods that differences are to, or `dense` (none)')
    parser.add_argument('--report', action='store_true', help='run nothing, read what is finished')
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run what is left, print and write."""
    args = make_parser().parse_args(argv)
    check_factor(args.epochs_factor, '--epochs-factor')
    quiet_hosts()
    args.net = args.net or TASKS[args.task].net
    args.methods = args.methods or main_methods(args.net)
    folder = Path(args.work_dir or
                  f'work_dirs/arena/{args.task}{"_slice" if args.train_slice else ""}')
    if args.report and not any((folder / args.net).rglob(RECORD)):
        raise FileNotFoundError(f'expected finished networks below `{folder / args.net}`, found '
                                'none')
    contents = {budget: arena_study(args.net, budget, args.methods, args.task)
                for budget in args.budgets}
    if not args.report:
        with locked(folder / 'runs'):
            for seed in args.seeds:
                for budget, content in contents.items():
                    _run(folder, content, args, seed, budget)
                    _report(folder, args)
    print(_report(folder, args))


def _run(folder: Path, content: dict, args: object, seed: int, budget: float) -> None:
    """Run one seed and budget in this process."""
    began = time.perf_counter()
    data = folder / 'data' / f'{"slice" if args.train_slice else "seed"}{seed}'
    TASKS[args.task].write(data, seed, args.train_slice)
    file = write_study_file(folder / f'study_{round(100 * budget)}.yml', content)
    options = StudyOptions(str(folder), str(data),
                           args.epochs_factor * TASKS[args.task].epochs_factor)
    with open(folder / f'seed{seed}.log', 'a') as log, contextlib.redirect_stdout(log), \
            contextlib.redirect_stderr(log):
        result = StudyPipeline(Study(file), args.net, seed, options).run()
    seen = equal_batches(content, result['stages'])
    print(f'seed {seed}, {budget:.0%}: {seen} batches of training for every method, '
          f'{time.perf_counter() - began:.0f} s', flush=True)


def _report(folder: Path, args: object) -> str:
    task = TASKS[args.task]
    methods = [*args.methods, *(name for name in args.to if name not in (*args.methods, 'dense'))]
    rows = read_rows(folder / args.net, args.budgets, methods, args.seeds, task.metric)
    title = f'{task.title}; {args.net}'
    if args.train_slice:
        title += '; on a fifth of the training digits, held out'
    summary = summarise(rows, args.to)
    write_report(folder, summary, rows, title, task.metric, arguments=vars(args))
    return table(summary, title, metric=task.metric)


if __name__ == '__main__':
    main()
