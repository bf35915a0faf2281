"""Detection and segmentation on digit scenes, dense against slimmed, in one table.

Mask R-CNN and UPerNet start from a small Swin that was trained on the digits. The slimmed ones
keep 70 % of the backbone's MACs: search, slimming and training on the scenes take together as
many iterations as the dense ones are trained. Prints box and mask AP, mIoU, MACs and latency;
writes table.txt, table.md and summary.json to the work dir.

A second call reuses what is finished, and goes on where one was stopped. What is not as the
configs expect it, after the whole schedules or a quarter of them, is told at the end.

Examples:
    python tools/benchmarks/digit_scenes.py
    python tools/benchmarks/digit_scenes.py --factor 0.25
    python tools/benchmarks/digit_scenes.py --backbone CHECKPOINT --tasks detection
"""

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.digits import write_digits
from lab.jobs import Job, run_jobs
from lab.machine import machine_info
from lab.run_settings import check_factor, check_target
from lab.scenes_job import (
    BACKBONE,
    EXPECTED,
    TASKS,
    ScenesOptions,
    ScenesPipeline,
    run_backbone,
    run_task,
)
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.core import atomic_write, locked
from mmkcr.engine.build import build_model, check_expected, load_config, load_weights
from mmkcr.visualization import format_table

CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
COLUMNS = ('model', 'params (k)', 'backbone MACs (M)', 'share', 'whole MACs (M)', 'box AP',
           'mask AP', 'mIoU (%)', 'ms / image', 'time')
NAMES = dict(detection='Mask R-CNN', segmentation='UPerNet')


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--work-dir', default='work_dirs/digit_scenes',
                        help='folder for everything that is written (%(default)s)')
    parser.add_argument('--data-root', default='data/digits',
                        help='digits; made if they are not there (%(default)s)')
    parser.add_argument('--backbone', metavar='CHECKPOINT',
                        help='of kcr-dense_swin-mini_anywhere_1xb64_digits; default: it is trained')
    parser.add_argument('--tasks', nargs='+', choices=list(TASKS), default=list(TASKS),
                        help='rows of the table (both)')
    parser.add_argument('--seed', type=int, default=0, help='of everything random (%(default)s)')
    parser.add_argument('--target-macs', default=0.7, metavar='TARGET',
                        help='of the backbone, as of tools/slim.py (%(default)s)')
    parser.add_argument('--factor', type=float, default=1., metavar='X',
                        help='stretch the schedules on the scenes (%(default)s)')
    parser.add_argument('--jobs', type=int, default=1,
                        help='tasks trained at a time, one process each (%(default)s)')
    add_trust_argument(parser)
    return parser


def rows_of(result: Mapping[str, Any], latency: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The two rows of a task, as numbers."""
    dense = result['rows']['dense']['backbone']['macs']
    rows = []
    for name, row in result['rows'].items():
        metrics = row['metrics']
        rows.append(dict(
            task=result['task'], model=name, params=row['params'],
            backbone_macs=row['backbone']['macs'], share=row['backbone']['macs'] / dense,
            whole_macs=row['backbone']['whole'], box_ap=metrics.get('coco/bbox_mAP'),
            mask_ap=metrics.get('coco/segm_mAP'), miou=metrics.get('mIoU'),
            ms_per_image=latency[name], time=latency['ratio'] if name == 'slim' else 1.,
            metrics=metrics))
    return rows


def cells_of(row: Mapping[str, Any]) -> list[str]:
    """A row as text."""
    def text(key: str, form: str, scale: float = 1.) -> str:
        return '' if row[key] is None else format(row[key] / scale, form)

    return [f'{NAMES[row["task"]]} {row["model"]}', text('params', '.1f', 1e3),
            text('backbone_macs', '.2f', 1e6), text('share', '.1%'), text('whole_macs', '.1f', 1e6),
            text('box_ap', '.3f'), text('mask_ap', '.3f'), text('miou', '.1f'),
            text('ms_per_image', '.2f'), text('time', '.1%')]


def write(folder: Path, rows: Sequence[Mapping[str, Any]], **content: Any) -> str:
    """Write summary and tables; the table for the terminal."""
    cells = [cells_of(row) for row in rows]
    lines = [COLUMNS, [':--'] + ['--:'] * (len(COLUMNS) - 1), *cells]
    machine = machine_info()
    title = (f'{content["command"]}; seed {content["options"]["seed"]}; {machine["cpu"]}, '
             f'{machine["threads"]} threads, torch {machine["torch"]}, mmkcr {machine["mmkcr"]}')
    texts = {'table.txt': format_table(COLUMNS, cells, title),
             'table.md': '\n'.join(f'| {" | ".join(line)} |' for line in lines) + f'\n\n{title}',
             'summary.json': json.dumps(dict(content, machine=machine, rows=rows), indent=1)}
    for name, text in texts.items():
        with atomic_write(folder / name) as path:
            path.write_text(text + '\n')
    return texts['table.txt']


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run, print and write."""
    args = make_parser().parse_args(argv)
    check_factor(args.factor, '--factor')
    quiet_hosts()
    began, folder = time.perf_counter(), Path(args.work_dir)
    options = ScenesOptions(args.work_dir, str(CONFIGS), args.data_root, args.backbone, args.seed,
                            args.target_macs, factor=args.factor)
    if args.backbone is not None:
        load_weights(build_model(load_config(CONFIGS / BACKBONE)), args.backbone)
    for task in args.tasks:
        check_target(ScenesPipeline(task, options).config_file('search'), args.target_macs,
                     options.divisor)
    if not Path(args.data_root).exists():
        write_digits(args.data_root)
    with locked(folder):
        backbone, = run_jobs({'backbone': Job(partial(run_backbone, options), 1,
                                              folder / 'backbone.log')}, 1)
        results = run_jobs({task: Job(partial(run_task, task, options, backbone['checkpoint']), 6,
                                      folder / f'{task}.log') for task in args.tasks}, args.jobs)
        rows = [row for result in results
                for row in rows_of(result, ScenesPipeline(result['task'], options).latency())]
    line = shlex.join(['python', 'tools/benchmarks/digit_scenes.py',
                       *(sys.argv[1:] if argv is None else argv)])
    seconds = round(time.perf_counter() - began, 1)
    asked = {**asdict(options), 'configs': 'configs'}
    print('\n' + write(folder, rows, command=line, options=asked, runs=results,
                       seconds_of_this_call=seconds))
    for row in rows if args.factor in EXPECTED else ():
        config = load_config(CONFIGS / TASKS[row['task']].format(row['model']))
        for text in check_expected(config, row['metrics'], EXPECTED[args.factor]):
            print(f'notice: {NAMES[row["task"]]} {row["model"]}: {text}')


if __name__ == '__main__':
    main()
