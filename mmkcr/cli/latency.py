"""Latency of two models against each other, and the share of the MAC saving that became time.

Both run in one process, in turns and in alternating order, under equal settings; the ratio is
the median over neighbouring pairs. The share is (1 - t_slim / t_dense) / (1 - macs_slim /
macs_dense). On one thread of a CPU the clock is that of the process, so that neighbours on a busy
machine do not count; else it is the wall clock.

A side is a config (a file or library::path, also of an ordinary model), a network of timm or
transformers (timm::NAME, timm::FOLDER, transformers::FOLDER), a checkpoint with its config and
--trust-checkpoint, or an ONNX file; weights are random, as times do not depend on them.
With the config of a subnet alone, the second side is the dense network. Models are exported for the
runtime, both sides alike. Several values of an option are measured one after the other;
every pair is a line of a CSV file that is named by hardware and versions.

Examples:
    mmkcr latency DENSE_CONFIG SLIM_CONFIG --runtime onnxruntime openvino
    mmkcr latency slim/config.py --runtime onnxruntime --batch-size 1 8
    mmkcr latency timm::vit_small_patch16_224 timm::slim --runtime onnxruntime
    mmkcr latency dense.onnx slim.onnx --runtime openvino
"""

import contextlib
import csv
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmkcr.apis.networks import Network, build_network, config_network, is_named
from mmkcr.cli.fields import Built, argument, read_shape, runs
from mmkcr.core.machine import hardware_name, versions_name
from mmkcr.deploy.export import read_macs_and_shape
from mmkcr.deploy.latency import AMP_DTYPES, Side, clock_for, measure_pair
from mmkcr.deploy.prepare import selection_forms
from mmkcr.deploy.runtimes import PACKAGES, RUNTIMES
from mmkcr.models.tasks import find_task
from mmkcr.visualization import format_table


@dataclass(frozen=True)
class LatencyJob(Built):
    """Arguments of ``mmkcr latency``."""

    dense: str = argument('config, checkpoint or ONNX file of one side', positional=True)
    slim: str | None = argument('of the other', positional=True, nargs='?')
    part: str = argument('what is timed and counted (%(default)s; of a detector with its neck)',
                         'model', choices=('model', 'backbone'))
    runtime: list[str] = argument('(%(default)s)', ['eager'], choices=RUNTIMES)
    batch_size: list[int] = argument('(%(default)s)', [1])
    threads: list[int] = argument('(%(default)s)', [1])
    amp: str | None = argument('autocast on both sides', choices=sorted(AMP_DTYPES))
    device: str = argument('cpu, cuda, cuda:1 (%(default)s)', 'cpu')
    repeats: int = argument('pairs (%(default)s)', 20)
    warmup: int = argument('pairs before (%(default)s)', 3)
    out: str = argument('where the CSV file is (%(default)s)', 'work_dirs/benchmarks',
                        metavar='DIR')
    slim_options: dict | None = argument('as --cfg-options, of the slim side only')


def make_pair(args: LatencyJob) -> tuple[Side, Side, tuple[int, int, int]]:
    """Both sides, and the shape (C, H, W) of their images.

    Raises:
        ValueError: One ONNX file alone, files without a size, or a dense network without a second
            side.
    """
    files = [name for name in (args.dense, args.slim) if str(name).endswith('.onnx')]
    if len(files) == 2:
        return Path(args.dense), Path(args.slim), read_shape(args) or _shape_of_files(files)
    if files:
        raise ValueError(f'expected another ONNX file beside `{files[0]}`, found '
                         f'`{args.slim if args.slim != files[0] else args.dense}`')
    shape = read_shape(args)
    torch.manual_seed(0)
    if args.slim:
        options = {**(args.cfg_options or {}), **(args.slim_options or {})}
        dense = build_network(args.dense, shape, args.cfg_options)
        torch.manual_seed(0)
        slim = build_network(args.slim, shape, options)
    else:
        dense, slim = _both_sides(args, shape)
    return _part(dense, args), _part(slim, args), dense.shape


def _both_sides(args: LatencyJob,
                shape: tuple[int, int, int] | None) -> tuple[Network, Network]:
    """The dense network and the slim one of the config of a subnet."""
    if is_named(args.dense):
        raise ValueError(f'expected a second side beside `{args.dense}`, found none')
    from mmkcr.engine.build import backbone_config, dense_config, load_config
    config = load_config(args.dense, args.cfg_options)
    if backbone_config(config).get('structure') is None:
        raise ValueError(f'expected a second side, or a `structure` in `{args.dense}`, found none')
    dense = config_network(dense_config(config), shape)
    torch.manual_seed(0)
    return dense, config_network(config, shape)


def _part(network: Network, args: LatencyJob) -> nn.Module:
    """The network, or the part of it that is timed."""
    if args.part == 'model':
        return network.model
    if network.config is None:
        raise ValueError('expected a config of mmpretrain, mmdet or mmseg for `--part backbone`, '
                         f'found `{type(network.model).__name__}`')
    return find_task(network.model).backbone


def _shape_of_files(files: Sequence[str]) -> tuple[int, int, int]:
    """The image's shape in ONNX files; files without a shape, or with two, are refused."""
    shapes = {read_macs_and_shape(file)[1] for file in files}
    if len(shapes) > 1 or None in shapes:
        raise ValueError('expected `--shape` for ONNX files that do not agree on the size of the '
                         f'image, or do not say it, found none for {", ".join(files)}')
    return shapes.pop()


def measure(args: LatencyJob, dense: Side, slim: Side, shape: Sequence[int], runtime: str,
            batch: int, threads: int) -> dict[str, Any]:
    """Time two sides in turns.

    Args:
        args (LatencyJob): Arguments of the command: device, pairs, autocast and part.
        dense (nn.Module | Path): The first side.
        slim (nn.Module | Path): The second side, whose time is divided by the first's.
        shape (Sequence[int]): (C, H, W) of the images.
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.RUNTIMES`.
        batch (int): Images of a batch.
        threads (int): CPU threads.

    Returns:
        dict: A line of the CSV file by column; ``''`` for an unknown number.
    """
    torch.manual_seed(0)
    images = torch.randn(batch, *shape, device=args.device)
    sides = [side.to(args.device) if isinstance(side, nn.Module) else side
             for side in (dense, slim)]
    timing = measure_pair(*sides, images, args.repeats, args.warmup, runtime, threads, args.amp)
    of_process = clock_for(runtime, threads, args.device) is time.process_time
    first, third = timing.quartiles
    numbers = dict(
        gmacs_dense=timing.macs_dense and timing.macs_dense / 1e9,
        gmacs_slim=timing.macs_slim and timing.macs_slim / 1e9, macs_ratio=timing.macs_ratio,
        ms_dense=timing.seconds[0] * 1e3, ms_slim=timing.seconds[1] * 1e3, ratio=timing.ratio,
        ratio_q1=first, ratio_q3=third, share=timing.share(), share_q1=timing.share(third),
        share_q3=timing.share(first))
    rounded = {key: '' if value is None else float(f'{value:.4g}')
               for key, value in numbers.items()}
    clock = 'cpu' if of_process else 'wall'
    return dict(
        part=args.part, height=shape[1], width=shape[2], runtime=runtime, threads=threads,
        batch=batch, amp=args.amp or 'fp32', device=args.device, clock=clock,
        pairs=len(timing.dense), **rounded)


def append(row: dict[str, Any], folder: Path) -> Path:
    """Add a line to the file of this machine."""
    path = folder / f'latency_{hardware_name()}_{versions_name()}.csv'
    folder.mkdir(parents=True, exist_ok=True)
    if path.is_file() and path.read_text().partition('\n')[0] != ','.join(row):
        path.rename(path.with_suffix(f'.{time.time_ns()}.csv'))  # of a version with other columns
    with path.open('a', newline='') as file:
        writer = csv.DictWriter(file, row, lineterminator='\n')
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)
    return path


def latency_text(rows: list[dict[str, Any]]) -> str:
    """The printed table of the measured lines."""
    columns = ('slim', 'runtime', 'threads', 'batch', 'G MACs', 'ms', 'MACs', 'time', 'quartiles',
               'share')
    return format_table(columns, [(
        row['slim'], row['runtime'], row['threads'], row['batch'],
        # '' where an ONNX file does not say the MACs, or says them for another size
        f'{row["gmacs_dense"] or "unknown"} to {row["gmacs_slim"] or "unknown"}',
        f'{row["ms_dense"]} to {row["ms_slim"]}',
        row['macs_ratio'], row['ratio'], f'{row["ratio_q1"]} to {row["ratio_q3"]}', row['share'])
        for row in rows], title=rows[0]['dense'])


@runs(LatencyJob)
def main(args: LatencyJob) -> None:
    """Measure, print and write."""
    with contextlib.redirect_stdout(sys.stderr):
        dense, slim, shape = make_pair(args)
    names = {side: Path(name.split('::')[-1]).stem for side, name in (
        ('dense', args.dense), ('slim', args.slim or 'its structure'))}
    rows = []
    for runtime, batch, threads in itertools.product(args.runtime, args.batch_size, args.threads):
        with contextlib.redirect_stdout(sys.stderr):
            rows.append(dict(names, **measure(args, dense, slim, shape, runtime, batch, threads)))
        path = append(rows[-1], Path(args.out))
        if (ratio := rows[-1]['ratio']) > 1:
            known = runtime in PACKAGES and isinstance(slim, nn.Module)
            forms = selection_forms(slim, runtime) if known else 'as they are'
            print(f'warning: in `{runtime}` at batch {batch} the slim side takes {ratio:.3f} of '
                  f'the time of the dense one; selections of channels: {forms}')
    print(latency_text(rows))
    if isinstance(dense, nn.Module):
        print('Weights are random: times do not depend on them.')
    print(f'Added {len(rows)} lines to {path}')
