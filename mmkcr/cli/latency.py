"""Latency of two models against each other, and the share of the MAC saving that became time.

Both run in one process, in turns and in alternating order, under the same settings; the ratio is
the median over neighbouring pairs. The share is (1 - t_slim / t_dense) / (1 - macs_slim /
macs_dense). On one thread of a CPU the clock is that of the process, so that neighbours on a busy
machine do not count; else it is the wall clock.

A side is a config (a file or library::path, also of an ordinary model) or an ONNX file. Weights are
random, as they make no difference. With one config, the other side follows from it: of the config
of a subnet the dense network, with --target-macs a subnet with one keep ratio everywhere, whose
units are drawn at random. Models are exported for the runtime, both sides in the same way. Several
values of an option are measured one after the other; every pair is a line of a CSV file that is
named by hardware and versions.

Examples:
    mmkcr latency DENSE_CONFIG SLIM_CONFIG --runtime onnxruntime openvino
    mmkcr latency dense.onnx slim.onnx --runtime openvino
    mmkcr latency mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py \\
        --target-macs 90% 70% 50% --sites mlp_hidden --runtime onnxruntime
"""

import contextlib
import csv
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from torch import nn

from mmkcr.cli.fields import argument, runs
from mmkcr.cli.shared import Configured, Shaped, Trusting, given_shape
from mmkcr.closed_form.kinds import DEFAULT_SITES
from mmkcr.core.machine import hardware_name, versions_name
from mmkcr.deploy.export import recorded
from mmkcr.deploy.latency import (
    AMP_DTYPES,
    PairTiming,
    Side,
    clock_for,
    measure_pair,
    random_subnet,
    searchable,
)
from mmkcr.deploy.prepare import selection_forms
from mmkcr.deploy.runtimes import PACKAGES, RUNTIMES
from mmkcr.engine.build import (
    backbone_config,
    build_model,
    default_shape,
    dense_config,
    load_config,
)
from mmkcr.models.tasks import find_task
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class LatencyJob(Configured, Shaped, Trusting):
    """Arguments of ``mmkcr latency``."""

    dense: str = argument('config or ONNX file of one side', positional=True)
    slim: str | None = argument('of the other', positional=True, nargs='?')
    target_macs: list[str] = argument(
        'random subnets of the dense side: 3.9G, 0.8 or 80%% of its MACs (none)', [None],
        metavar='TARGET')
    sites: list[str] | None = argument(
        'of random subnets; default: those of the backbone, else those of '
        f'{", ".join(DEFAULT_SITES)} that it has', metavar='KIND')
    where: str = argument('of the sites: part of the paths of their modules (all)', '',
                          metavar='REGEX')
    divisor: int = argument('with --target-macs, sizes are multiples of it (%(default)s)', 8)
    group: int = argument('with --target-macs, so many neighbouring units are kept together '
                          '(%(default)s)', 1)
    part: str = argument('what is timed and counted (%(default)s; of a detector with its neck)',
                         'model', choices=('model', 'backbone'))
    runtime: list[str] = argument('(%(default)s)', ['eager'], choices=RUNTIMES)
    batch_size: list[int] = argument('(%(default)s)', [1])
    threads: list[int] = argument('(%(default)s)', [1])
    amp: str | None = argument('autocast on both sides', choices=sorted(AMP_DTYPES))
    device: str = argument('cpu, cuda, cuda:1 (%(default)s)', 'cpu')
    repeats: int = argument('pairs (%(default)s)', 20)
    warmup: int = argument('pairs before (%(default)s)', 3)
    clock: str | None = argument('default: cpu on one thread of a CPU, else wall',
                                 choices=('wall', 'cpu'))
    out: str = argument('where the CSV file is (%(default)s)', 'work_dirs/benchmarks',
                        metavar='DIR')
    slim_options: dict | None = argument('as --cfg-options, of the slim side only')


class TimedPair(NamedTuple):
    """Two sides to measure by images of a shape (C, H, W); the sites are of a random subnet."""

    names: tuple[str, str]
    dense: Side
    slim: Side
    shape: tuple[int, int, int]
    sites: str = ''


def build(config: Config, part: str) -> nn.Module:
    """A model of random weights, or its backbone."""
    torch.manual_seed(0)
    model = build_model(config)
    return find_task(model).backbone if part == 'backbone' else model


def make_pair(args: LatencyJob, target: str | None) -> TimedPair:
    """The two sides: both given, or the other one follows from the first."""
    for name in ('sites', 'divisor', 'group') if target is None else ():
        if getattr(args, name) != getattr(LatencyJob, name):
            raise ValueError(f'expected `--{name}` with `--target-macs`, found it without')
    if args.slim and target:
        raise ValueError(f'expected a second side or `--target-macs`, found `{args.slim}` and '
                         f'{target!r}')
    onnx = [name for name in (args.dense, args.slim) if str(name).endswith('.onnx')]
    if onnx:
        if len(onnx) != 2:
            raise ValueError(f'expected another ONNX file beside `{onnx[0]}`, found '
                             f'`{args.slim if args.slim != onnx[0] else args.dense}`')
        shape = given_shape(args) or _shape_of_files(onnx)
        return TimedPair(tuple(Path(name).stem for name in onnx), *map(Path, onnx), shape)
    config = load_config(args.dense, args.cfg_options)
    dense, kinds = build(config if args.slim else dense_config(config), args.part), ''
    shape = given_shape(args) or default_shape(config, dense)
    if args.slim:
        options = {**(args.cfg_options or {}), **(args.slim_options or {})}
        name, slim = label(args.slim), build(load_config(args.slim, options), args.part)
    elif target is None:
        if backbone_config(config).get('structure') is None:
            raise ValueError(f'expected a second side, `--target-macs` or a `structure` in '
                             f'`{args.dense}`, found none')
        name, slim = 'its structure', build(config, args.part)
    else:
        if args.where and not args.sites:
            raise ValueError(f'expected `--sites` with `--where {args.where}`, found none')
        name, slim = f'random, {target}', build(dense_config(config), args.part)
        space = searchable(slim, [dict(kind=kind, where=args.where) for kind in args.sites or ()])
        kinds = '+'.join(kind if isinstance(kind, str) else kind['kind'] for kind in space.kinds)
        kinds += f', groups of {args.group}' if args.group > 1 else ''
        random_subnet(slim, target, shape, None if args.part == 'backbone' else 'model',
                      args.divisor, group=args.group)
    return TimedPair((label(args.dense), name), dense, slim, shape, kinds)


def _shape_of_files(files: Sequence[str]) -> tuple[int, int, int]:
    """The image's shape, which all ONNX files must say and agree on."""
    shapes = {recorded(file)[1] for file in files}
    shape = shapes.pop()
    if shapes or shape is None:
        raise ValueError('expected `--shape` for ONNX files that do not agree on the size of the '
                         f'image, or do not say it, found none for {", ".join(map(str, files))}')
    return shape


def label(name: str) -> str:
    """A side's name without folders."""
    return name.split('::')[-1].rsplit('/', 1)[-1].removesuffix('.py')


def measure(pair: TimedPair, args: LatencyJob, runtime: str, batch: int,
            threads: int) -> tuple[dict[str, Any], PairTiming]:
    """One line of the file."""
    torch.manual_seed(0)
    clock = time.perf_counter if args.clock == 'wall' else \
        clock_for(runtime, threads, args.device)
    if args.clock == 'cpu' and clock is not time.process_time:
        raise ValueError(f'expected one thread of a CPU for `--clock cpu`, found {threads} on '
                         f'{args.device}')
    images = torch.randn(batch, *pair.shape, device=args.device)
    sides = [side.to(args.device) if isinstance(side, nn.Module) else side
             for side in (pair.dense, pair.slim)]
    timing = measure_pair(*sides, images, args.repeats, args.warmup, runtime, threads, args.amp,
                          clock)
    times, (height, width) = timing.to_dict(), pair.shape[1:]
    row = dict(dense=pair.names[0], slim=pair.names[1], sites=pair.sites, part=args.part,
               height=height, width=width, runtime=runtime, threads=threads, batch=batch,
               amp=args.amp or 'fp32', device=args.device,
               clock='cpu' if clock is time.process_time else 'wall', pairs=len(timing.dense),
               gmacs_dense=rounded(timing.macs_dense, 1e-9),
               gmacs_slim=rounded(timing.macs_slim, 1e-9), macs_ratio=rounded(timing.macs_ratio),
               ms_dense=rounded(times['seconds']['dense'], 1e3),
               ms_slim=rounded(times['seconds']['slim'], 1e3))
    for key in ('ratio', 'share'):
        row[key] = rounded(times[key])
        row[f'{key}_q1'], row[f'{key}_q3'] = map(rounded, times[f'{key}_quartiles'])
    return row, timing


def rounded(value: float | None, scale: float = 1.) -> Any:
    """Four digits; '' of nothing."""
    return '' if value is None else float(f'{value * scale:.4g}')


def append(row: dict[str, Any], folder: Path) -> Path:
    """Add a line to the file of this machine."""
    path = folder / f'latency_{hardware_name()}_{versions_name()}.csv'
    folder.mkdir(parents=True, exist_ok=True)
    with path.open('a', newline='') as file:
        writer = csv.DictWriter(file, row, lineterminator='\n')
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)
    return path


def latency_text(rows: list[dict[str, Any]]) -> str:
    """The table."""
    columns = ('slim', 'sites', 'runtime', 'threads', 'batch', 'G MACs', 'ms', 'MACs', 'time',
               'quartiles', 'share')
    return format_table(columns, [(
        row['slim'], row['sites'], row['runtime'], row['threads'], row['batch'],
        # '' where an ONNX file does not say, or says those of another size
        f'{row["gmacs_dense"] or "unknown"} to {row["gmacs_slim"] or "unknown"}',
        f'{row["ms_dense"]} to {row["ms_slim"]}',
        row['macs_ratio'], row['ratio'], f'{row["ratio_q1"]} to {row["ratio_q3"]}', row['share'])
        for row in rows], title=rows[0]['dense'])


@runs(LatencyJob)
def main(args: LatencyJob) -> None:
    """Measure, print and write."""
    rows, path = [], None
    settings = list(itertools.product(args.runtime, args.batch_size, args.threads))
    for target in args.target_macs:
        with contextlib.redirect_stdout(sys.stderr):
            pair = make_pair(args, target)
        for runtime, batch, threads in settings:
            with contextlib.redirect_stdout(sys.stderr):
                row, timing = measure(pair, args, runtime, batch, threads)
            rows.append(row)
            path = append(row, Path(args.out))
            if timing.ratio > 1:
                known = runtime in PACKAGES and not isinstance(pair.slim, Path)
                forms = selection_forms(pair.slim, runtime) if known else 'as they are'
                print(f'warning: in `{runtime}` at batch {batch} the slim side takes '
                      f'{timing.ratio:.3f} of the time of the dense one; selections of channels: '
                      f'{forms}')
    print(latency_text(rows))
    if not isinstance(pair.dense, Path):
        print('Weights are random: times do not depend on them.')
    print(f'Added {len(rows)} lines to {path}')
