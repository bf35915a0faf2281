"""A table of the time that a network's sites cost at some sizes, for budgets of time.

Made once for a machine, runtime, number of threads and batch size; a call that was stopped goes on
where it was. Measured in turns with the dense network, exported alike.

Examples:
    mmkcr latency-table CONFIG --runtime openvino --out openvino.json
    mmkcr compress CONFIG CHECKPOINT --target-latency 12ms --latency-table openvino.json
    mmkcr latency-table CONFIG --runtime onnxruntime --threads 1 --batch 1
    mmkcr compress CONFIG CHECKPOINT --target-latency 12ms --runtime onnxruntime \\
        --threads 1 --batch 1
"""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from mmkcr.cli.fields import Configured, Shaped, argument, read_shape, runs
from mmkcr.core import load_table
from mmkcr.core.latency import milliseconds
from mmkcr.deploy.latency_table import CONDITIONS, measure_table, table_path
from mmkcr.deploy.runtimes import RUNTIMES
from mmkcr.engine.build import build_model, default_shape, dense_config, load_config
from mmkcr.models.tasks import is_dense_task
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class LatencyTableJob(Configured, Shaped):
    """Arguments of ``mmkcr latency-table``."""

    config: str = argument('of a dense model or a search', positional=True)
    sites: list[str] | None = argument('default: those of a search of the backbone, else those '
                                       'that `mmkcr compress` would take', metavar='KIND')
    runtime: str = argument('(%(default)s)', CONDITIONS['runtime'], choices=RUNTIMES)
    threads: int = argument('(%(default)s)', CONDITIONS['threads'])
    batch: int = argument('(%(default)s)', CONDITIONS['batch'], names=('--batch-size', ))
    part: str | None = argument('what is timed; default: as of `mmkcr compress`',
                                choices=('model', 'backbone'))
    divisor: int = argument('of the sizes (%(default)s)', 8)
    repeats: int = argument('pairs (%(default)s)', 15)
    out: str | None = argument(
        '(work_dirs/latency_tables/<config name>_<runtime>_threads<N>_batch<N>_<hardware>.json, '
        'where --target-latency looks for it)', metavar='FILE')


@runs(LatencyTableJob)
def main(args: LatencyTableJob) -> None:
    """Measure, write and print."""
    config = dense_config(load_config(args.config, args.cfg_options))
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        model = build_model(config)
    model.eval()
    shape = default_shape(config, model, read_shape(args))
    part = args.part or ('backbone' if is_dense_task(model) else None)
    conditions = {key: getattr(args, key) for key in CONDITIONS}
    path = Path(args.out or table_path(args.config, **conditions))
    for line in measure_table(model, path, dict(conditions, input_shape=list(shape), part=part),
                              args.sites, args.divisor, args.repeats):
        print(line, flush=True)
    table = load_table(path)
    rows = [(entry['sites'][0], len(entry['sites']), f'{size} of {entry["total"]}',
             f'{change / 1e6:+.3f}')
            for entry in table.classes for size, change in entry['changes'].items()]
    print(format_table(('site', 'such sites', 'units', 'ms each'), rows))
    print(f'Dense: {milliseconds(table.dense)}. Wrote {path}')
