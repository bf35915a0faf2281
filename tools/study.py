"""A study (an ablation table) in one command: trainings, slimmings, evaluations, one table.

The study is a YAML file with named variants, see tools/lab/study.py. Stages that variants
have in common are run once. Prints the table with mean and standard deviation over the seeds;
writes table.txt, table.md, summary.json and accuracy_over_macs_*.png to the work dir.

A second call reuses what is finished, and goes on where one was stopped.

Examples:
    python tools/study.py configs/dcs/digits/dcs-study_ablation_digits.yml --seeds 0 1 2
    python tools/study.py STUDY.yml --train-slice --epochs-factor 0.5
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from lab.digits import write_digits
from lab.jobs import Job, run_jobs
from lab.run_settings import add_run_arguments, check_run_arguments
from lab.study import Study, StudyOptions
from lab.study_pipeline import StudyPipeline, run_study
from lab.study_report import summarise, table, write_study
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import locked


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('study', help='YAML file')
    parser.add_argument('--work-dir', help='folder for everything that is written '
                        '(work_dirs/<name of the study>)')
    parser.add_argument('--nets', nargs='+', help="some of the study's networks (all)")
    parser.add_argument('--rows', nargs='+', metavar='NAME',
                        help="some of the study's rows, and only the stages that they need (all)")
    add_run_arguments(parser)
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    args = make_parser().parse_args(argv)
    check_run_arguments(args)
    quiet_hosts()
    study, began = Study(args.study, args.rows), time.perf_counter()
    unknown = sorted(set(args.nets or ()) - set(study.nets))
    if unknown:
        raise ValueError(f'expected `--nets` among {study.nets}, found `{unknown[0]}`')
    options = StudyOptions(args.work_dir or f'work_dirs/{study.path.stem}', args.data_root,
                           args.epochs_factor, args.train_slice,
                           args.rows and tuple(args.rows))
    if not Path(args.data_root).exists():
        write_digits(args.data_root)
    with locked(options.work_dir):
        results = run_jobs(_jobs(study, args.nets or study.nets, args.seeds, options), args.jobs)
        rows, seconds = summarise(study, results), round(time.perf_counter() - began, 1)
        asked = {**asdict(options), 'seeds': args.seeds}
        write_study(Path(options.work_dir), study, rows, results, asked,
                    seconds_of_this_call=seconds)
    print(f'\n{table(study, rows)}\n{seconds:.0f} s; summary.json, table.txt and table.md: '
          f'{options.work_dir}')


def _jobs(study: Study, nets: Sequence[str], seeds: Sequence[int], options: StudyOptions) -> dict:
    jobs = {}
    for seed in seeds:
        for net in nets:
            pipeline = StudyPipeline(study, net, seed, options)
            jobs[pipeline.name] = Job(
                partial(run_study, str(study.path), net, seed, options), study.steps(),
                pipeline.folder.with_name(f'{pipeline.folder.name}.log'))
    return jobs


if __name__ == '__main__':
    main()
