"""All figures of one GPU: inference, training steps, searches, refits; row by row.

Tables: `inference` (dense against slim in turns: every structure file of configs/structures, eager
and compiled, fp32, bf16 and fp16, batch 1 to 256), `multiples` (random hidden units and channels of
heads at 60 % of the MACs, by what their numbers are multiples of), `step` (what the KCR and IB
terms add to a training step), `search` (steps of Once for Both while it slices), `block` and
`backbone` (drop-in depthwise convolution) and `refit` (closed-form compression). The most telling
rows come first; when the time is over, the rest is left, and the same command goes on. A row that
fails is written with its error. Weights and images are random.

Writes rows.jsonl, and from it a CSV file a table and tables.md, into a folder that is named by
hardware and versions. tools/benchmarks/gpu.sh goes on where an error took the process along.

Examples:
  bash tools/benchmarks/gpu.sh
  bash tools/benchmarks/gpu.sh --short
  python tools/benchmarks/gpu.py --tables inference --networks kcr-search_vit-small_8xb64_in1k-100
"""

import contextlib
import csv
import functools
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.attention_profile import MODES, profile_block, replaced_pair
from lab.commands import load_tool
from lab.machine import machine_info
from lab.random_subnets import random_pair
from mmkcr.apis.inference import shipped_root
from mmkcr.cli.command import Parser, command, quiet_hosts, sentence
from mmkcr.core import Structure, atomic_write
from mmkcr.core.machine import hardware_name, versions_name
from mmkcr.engine.build import load_config
from mmkcr.registry import MODELS

TABLES = ('inference', 'multiples', 'step', 'search', 'block', 'backbone', 'refit')
RUNTIMES = ('eager', 'compiled')
BATCHES, DTYPES = (1, 64, 256, 8), ('bf16', 'fp32', 'fp16')
_SMALL = 'kcr-search_vit-small_8xb64_in1k-100'
#: Exit status after an error that the device does not recover from.
BROKEN = 75
Values = dict[str, Any]


class Job(NamedTuple):
    """What one call measures.

    Args:
        table (str): Of :data:`TABLES`.
        key (dict): What makes it different from the others.
        run (Callable): Gives one row or more.
    """

    table: str
    key: Values
    run: Callable[[], list[Values]]

    @property
    def name(self) -> str:
        """Of one line, the same in every call."""
        return ' '.join([self.table, *(f'{key}={value}' for key, value in self.key.items())])


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--short', action='store_true',
                        help='on the CPU, a few small rows of every table and runtime')
    parser.add_argument('--tables', nargs='+', choices=TABLES, default=list(TABLES),
                        help='(all)')
    parser.add_argument('--networks', nargs='+', metavar='NAME',
                        help='of the inference table: names in configs/structures, or CONFIG=60%% '
                        'for random units (all structures; one a method with --short)')
    parser.add_argument('--runtimes', nargs='+', choices=RUNTIMES, default=list(RUNTIMES),
                        help='of inference, multiples, block and backbone (both)')
    parser.add_argument('--minutes', type=float, default=18,
                        help='after which no row begins (%(default)g)')
    parser.add_argument('--repeats', type=int, help='pairs or runs a row (10; 2 with --short)')
    parser.add_argument('--retry', action='store_true', help='measure rows that failed again')
    parser.add_argument('--device', help='(cuda; cpu with --short)')
    parser.add_argument('--out', metavar='DIR', default='work_dirs/benchmarks/gpu',
                        help='the folder of the machine is made in it (%(default)s)')
    return parser


# ---- networks -----------------------------------------------------------------------------------


def structure_names() -> list[str]:
    """Names of the structure files: one of every method and backbone first."""
    names = sorted(path.stem for path in (shipped_root() / 'configs/structures').glob('*.json'))
    seen, order = set(), {}
    for name in names:
        method, backbone = name.split('_')[:2]
        order[name] = (method, backbone) in seen
        seen.add((method, backbone))
    return sorted(names, key=lambda name: (order[name], name))


def input_shape(structure: Structure) -> tuple[int, int, int]:
    """(C, H, W) that a structure was counted for, or that its backbone is built for."""
    side = structure.backbone.get('img_size', 224)
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    return tuple(structure.macs.get('input_shape') or (3, height, width))


class Networks:
    """Pairs of dense and slim networks; the last one is kept.

    Args:
        short (bool): See the command line.
    """

    def __init__(self, short: bool) -> None:
        self.short, self.tool = short, load_tool('benchmarks/latency')
        self._last: tuple[str, Any] = ('', None)

    def pair(self, name: str, build: Callable[[str], Any]) -> Any:
        """The pair of a name, built where it is not the last one."""
        if self._last[0] != name:
            self._last = ('', None)
            gc.collect()
            with contextlib.redirect_stdout(sys.stderr):
                self._last = (name, build(name))
        return self._last[1]

    def of_name(self, name: str) -> Any:
        """The pair of a name of the command line."""
        config, _, target = name.partition('=')
        if target:
            return (name, 'random'), random_pair(load_config(config), target)[:3]
        path = shipped_root() / 'configs/structures' / f'{name}.json'
        if not path.is_file():
            raise FileNotFoundError('expected a name of configs/structures or CONFIG=TARGET, found '
                                    f'`{name}`')
        structure = Structure.load(path)
        dense, slim = (MODELS.build(dict(structure.backbone, **given))
                       for given in ({}, dict(structure=str(path))))
        return (name, 'structure'), (dense, slim, input_shape(structure))

    def random(self, name: str, config: str, divisor: int, group: int) -> Any:
        """Random hidden units and head channels at 60 % of the MACs, beside the dense network."""
        return (name, 'random'), random_pair(
            load_config(config), '60%', 'backbone', ['mlp_hidden', 'head_channels'],
            divisor=divisor, group=group)[:3]

    def replaced(self, name: str, size: str, share: float, image: int) -> Any:
        """A ViT with a share of its blocks replaced, beside the dense one."""
        dense, slim = replaced_pair(size, share, image, depth=3 if self.short else None)
        return (f'ViT {size}', name), (dense, slim, (3, image, image))

    def row(self, name: str, runtime: str, dtype: str, batch: int, device: str, repeats: int,
            build: Callable[[str], Any] | None = None) -> Values:
        """Time dense and slim in turns."""
        given = ['x', '--part', 'model' if '=' in name else 'backbone', '--device', device,
                 '--repeats', str(repeats), '--warmup', '1' if self.short else '3',
                 *(['--amp', dtype] if dtype != 'fp32' else [])]
        threads = 1 if device == 'cpu' else torch.get_num_threads()
        names, pair = self.pair(name, build or self.of_name)
        row = self.tool.measure(self.tool.main.parser().parse_args(given), *pair, runtime, batch,
                                threads)
        torch._dynamo.reset()
        return dict(zip(('dense', 'slim'), names), **{
            key: value for key, value in row.items() if key not in ('runtime', 'batch', 'amp')})


# ---- jobs, in the order of their weight ---------------------------------------------------------


def inference_jobs(args: Any, runtime: str) -> Iterator[Job]:
    """Rows of the networks: those of the first settings for all of them before the others."""
    networks, names = Networks(args.short), args.networks or structure_names()
    if args.short:
        firsts = {name.split('-')[0]: name for name in reversed(names)}
        # compiling a network takes longer than all else on a CPU
        names = args.networks or ([_SMALL] if runtime == 'compiled' else list(firsts.values()))
    settings = [(dtype, batch) for dtype in (('fp32', 'bf16') if args.short else DTYPES)
                for batch in ((1, ) if args.short else BATCHES)]
    settings = settings[:1] if args.short and runtime == 'compiled' else settings
    # compiling takes longer than measuring: one setting of all networks, then the next
    groups = [[setting] for setting in settings] if runtime == 'compiled' else [settings]
    for group, name in itertools.product(groups, names):
        for dtype, batch in group:
            key = dict(network=name, runtime=runtime, dtype=dtype, batch=batch)
            yield Job('inference', key, lambda key=key: [networks.row(
                key['network'], runtime, key['dtype'], key['batch'], args.device, args.repeats)])


def multiples_jobs(args: Any, runtime: str) -> Iterator[Job]:
    """Random units: sizes in multiples of 8 and 64, and of 8 and 16 in every head."""
    networks = Networks(args.short)
    configs = [f'mmpretrain::{name}_in1k.py' for name in (
        ('deit/deit-tiny_4xb256', ) if args.short else
        ('deit/deit-base_16xb64', 'swin_transformer/swin-tiny_16xb64',
         'deit/deit-small_4xb256'))]
    sizes = ((8, 1), ) if args.short else ((8, 1), (64, 1), (8, 8), (8, 16), (64, 16))
    dtypes, batch = (('fp32', ), 1) if args.short else (('bf16', 'fp32'), 256)
    for config, (divisor, group), dtype in itertools.product(
            configs, sizes, dtypes[:1] if runtime == 'compiled' else dtypes):
        key = dict(config=config, divisor=divisor, group=group, runtime=runtime, dtype=dtype,
                   batch=batch)
        build = functools.partial(networks.random, config=config, divisor=divisor, group=group)
        yield Job('multiples', key, lambda key=key, build=build: [networks.row(
            '{config}, multiples of {divisor}, groups of {group}'.format(**key), key['runtime'],
            key['dtype'], key['batch'], args.device, args.repeats, build)])


def step_jobs(args: Any) -> Iterator[Job]:
    """What the regularisers add to a step."""
    tool = load_tool('benchmarks/regularizer_overhead')
    for term, batch in itertools.product(('kcr', 'ib'), (1, ) if args.short else (64, 128)):
        yield Job('step', dict(term=term, batch=batch), lambda term=term, batch=batch: [
            _plain(tool.measure_steps(term, batch, max(args.repeats, 2), args.device))])


def search_jobs(args: Any) -> Iterator[Job]:
    """Steps of a search by what is left of the network; all stages in turns are one job."""
    tool = load_tool('benchmarks/search_speed')

    def run(path: Path, batch: int) -> list[Values]:
        shares = (0.3, ) if args.short else (0.75, 0.5, 0.35, 0.2)
        _, stages = tool.stages_of(tool.read_search(str(path)), shares, args.device)
        tool.measure(stages, batch, args.repeats)
        rows = [dict(zip(tool.COLUMNS, row)) for row in tool.rows_of(stages)]
        for row, stage in zip(rows, stages):
            row['images/s'] = batch / sorted(stage.seconds)[len(stage.seconds) // 2]
        return rows

    paths = sorted((shipped_root() / 'configs/ofb/search').glob('*.py'), reverse=True)
    batch = 2 if args.short else 128
    for path in [path for path in paths if 'deit-small' in path.stem] if args.short else paths:
        yield Job('search', dict(network=path.stem, batch=batch),
                  lambda path=path: run(path, batch))


def block_jobs(args: Any, runtime: str) -> Iterator[Job]:
    """Blocks of attention and of operators."""
    sizes, grids = (('small', ), (12, )) if args.short else (('base', 'large'), (24, 37))
    dtypes, modes = ('fp32', 'bf16') if args.short else DTYPES, MODES
    if args.short and runtime == 'compiled':
        dtypes, modes = ('fp32', ), ('dwconv', )
    for size, grid, dtype, mode in itertools.product(sizes, grids, dtypes, modes):
        key = dict(size=size, grid=grid, runtime=runtime, dtype=dtype, mode=mode)
        yield Job('block', key, lambda key=key: [_plain(profile_block(
            key['mode'], key['size'], (key['grid'], ) * 2, device=args.device,
            dtype=_amp(key['dtype']), runtime=key['runtime'], repeats=args.repeats))])


def backbone_jobs(args: Any, runtime: str) -> Iterator[Job]:
    """Whole ViTs with blocks of operators."""
    networks = Networks(args.short)
    sizes, images = (('base', ), (112, )) if args.short else (('large', 'base'), (336, 518))
    shares = (0.5, 0.25, 2 / 3)[:1 if args.short else 3]
    for size, image, share, dtype in itertools.product(
            sizes, images, shares, ['fp32'] if args.short else DTYPES):
        key = dict(size=size, image=image, dtype=dtype, runtime=runtime, share=round(share, 3))
        build = functools.partial(networks.replaced, size=size, share=share, image=image)
        yield Job('backbone', key, lambda key=key, build=build: [networks.row(
            'depthwise heads in {share} of the blocks of {size} at {image} px'.format(**key),
            key['runtime'], key['dtype'], 1, args.device, args.repeats, build)])


def refit_jobs(args: Any) -> Iterator[Job]:
    """Closed-form refits of layers."""
    tool = load_tool('benchmarks/refit')
    for width in (128, ) if args.short else (384, 768, 3072, 4096):
        tokens = 2000 if args.short else 25000
        yield Job('refit', dict(width=width, tokens=tokens), lambda width=width, tokens=tokens: [
            tool.measure(width, tokens, 1, 0.5, torch.device(args.device), time.perf_counter)])


def all_jobs(args: Any) -> Iterator[Job]:
    """The chosen jobs in the order in which they run."""
    jobs = dict(step=step_jobs, search=search_jobs, refit=refit_jobs)
    timed = dict(inference=inference_jobs, multiples=multiples_jobs, block=block_jobs,
                 backbone=backbone_jobs)
    order = [('inference', 'eager'), ('multiples', 'eager'), ('step', ''), ('search', ''),
             ('refit', ''), ('block', 'eager'), ('backbone', 'eager'), ('inference', 'compiled'),
             ('multiples', 'compiled'), ('block', 'compiled'), ('backbone', 'compiled')]
    for table, runtime in order:
        if table in args.tables and not runtime:
            yield from jobs[table](args)
        elif table in args.tables and runtime in args.runtimes:
            yield from timed[table](args, runtime)


def _amp(dtype: str) -> str | None:
    return None if dtype == 'fp32' else dtype


def _plain(values: Values) -> Values:
    """Without samples; what is nested gets flat names."""
    found = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found.update({f'{key}_{name}': inner for name, inner in value.items()
                          if not isinstance(inner, list)})
        elif key != 'samples':
            found[key] = ' '.join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return found


# ---- rows that are there ------------------------------------------------------------------------


class Record:
    """Rows of one machine in one folder.

    Args:
        folder (Path): Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.running = folder, folder / 'rows.jsonl', folder / '.running'
        folder.mkdir(parents=True, exist_ok=True)
        lines = self.file.read_text().splitlines() if self.file.is_file() else []
        self.rows: list[Values] = [json.loads(line) for line in lines]
        if self.running.is_file():  # the process died in this row
            job = json.loads(self.running.read_text())
            self.add(**job, values=[], error='expected the row to end, found that its process died')

    def begin(self, job: Job) -> None:
        """Say what is measured now."""
        with atomic_write(self.running) as path:
            path.write_text(json.dumps(dict(name=job.name, table=job.table, key=job.key)))

    def add(self, **row: Any) -> None:
        """Take a row; an earlier one of its name goes."""
        self.rows = [other for other in self.rows if other['name'] != row['name']] + [row]
        with atomic_write(self.file) as path:
            path.write_text(''.join(json.dumps(row) + '\n' for row in self.rows))
        self.running.unlink(missing_ok=True)

    def done(self, retry: bool) -> dict[str, bool]:
        """Names of the rows that are not measured again."""
        return {row['name']: True for row in self.rows if not (retry and row['error'])}

    def write_tables(self) -> Path:
        """A CSV file a table, and all of them as Markdown."""
        machine = machine_info()
        lines = ['# ' + ', '.join(f'{key} {value}' for key, value in machine.items()
                                  if value is not None), '']
        for table in TABLES:
            rows = [{**row['key'], **values, 'error': row['error']} for row in self.rows
                    if row['table'] == table for values in row['values'] or [{}]]
            if not rows:
                continue
            columns = list(dict.fromkeys(key for row in rows for key in row))
            columns = [*(key for key in columns if key != 'error'), 'error']
            with atomic_write(self.folder / f'{table}.csv') as path, \
                    path.open('w', newline='') as file:
                writer = csv.DictWriter(file, columns, lineterminator='\n')
                writer.writeheader()
                writer.writerows(rows)
            lines += [f'## {table}', '', '| ' + ' | '.join(columns) + ' |',
                      '|' + ' --- |' * len(columns)]
            lines += ['| ' + ' | '.join(_cell(row.get(key, '')) for key in columns) + ' |'
                      for row in rows] + ['']
        with atomic_write(self.folder / 'tables.md') as path:
            path.write_text('\n'.join(lines))
        return self.folder / 'tables.md'


def _cell(value: Any) -> str:
    return f'{value:.4g}' if isinstance(value, float) else str(value).replace('|', '/')


def is_broken(device: str) -> bool:
    """Whether a GPU answers no more."""
    try:
        if torch.device(device).type == 'cuda':
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
    except RuntimeError:
        return True
    return False


def measure_missing(args: Any, record: Record, end: float) -> tuple[int, int]:
    """Run the jobs that have no row.

    Args:
        args (Namespace): Of the command line.
        record (Record): Takes the rows.
        end (float): Time at which no job begins any more.

    Returns:
        tuple[int, int]: Jobs that are left, and that failed.
    """
    done, left, failed = record.done(args.retry), 0, 0
    for job in all_jobs(args):
        if job.name in done:
            continue
        if time.time() > end:
            left += 1
            continue
        record.begin(job)
        start, values, error = time.time(), [], ''
        try:
            torch.manual_seed(0)
            values = job.run()
        except Exception as problem:  # whatever it is: the other rows are worth having
            error = f'{type(problem).__name__}: {sentence(problem):.300}'
            failed += 1
        except KeyboardInterrupt:  # not the row's fault
            record.running.unlink()
            raise
        record.add(name=job.name, table=job.table, key=job.key, values=values, error=error,
                   seconds=round(time.time() - start, 2))
        print(f'{time.time() - start:6.1f} s  {job.name}{"  FAILED: " if error else ""}{error}',
              flush=True)
        if error and is_broken(args.device):
            sys.exit(BROKEN)
    return left, failed


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing, write, print."""
    args = make_parser().parse_args(argv)
    args.device = args.device or ('cpu' if args.short else 'cuda')
    args.repeats = args.repeats or (2 if args.short else 10)
    if args.minutes <= 0:
        raise ValueError(f'expected `--minutes` above 0, found {args.minutes:g}')
    if args.device != 'cpu' and not torch.cuda.is_available():
        raise ValueError(f'expected a GPU for `--device {args.device}`, found none: `--short` runs '
                         'on the CPU')
    quiet_hosts()
    end = float(os.environ.get('MMKCR_BEGAN', time.time())) + 60 * args.minutes
    record = Record(Path(args.out) / f'{hardware_name()}_{versions_name()}')
    try:
        left, failed = measure_missing(args, record, end)
    finally:
        tables = record.write_tables()
    print(f'{len(record.rows)} rows are there, {failed} failed now, {left} are left'
          f'{" (the same command goes on)" if left else ""}: {tables}')


if __name__ == '__main__':
    main()
