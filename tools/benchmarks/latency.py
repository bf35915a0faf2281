"""Latency of a dense model against its subnet, and the MAC saving that became time.

Both run in one process, in turns and in alternating order, under the same
settings; the ratio is the median over neighbouring pairs. The share is
(1 - t_slim / t_dense) / (1 - macs_slim / macs_dense).

The dense side is the host's own network; with `--dense subnet` it is a subnet
that keeps every channel, so that both sides have the same layers and only their
sizes and the selection of channels differ. With `--layers` the layers that shrink
are then timed too, in further pairs: what they save is the most that can become
time as long as nothing else gets faster.

The subnet is that of a second config, of --structure, of the config's own
structure or, before any search, of --target-macs: one keep ratio everywhere,
the channels at random. Weights are random.

Examples:
    python tools/benchmarks/latency.py configs/kcr/search/kcr-search_swin-tiny_8xb64_in1k-100.py \\
        --target-macs 3.9G --divisor 8
    python tools/benchmarks/latency.py CONFIG --structure structure.json --compile
    python tools/benchmarks/latency.py CONFIG --target-macs 80% --dense subnet --layers
    python tools/benchmarks/latency.py DENSE_CONFIG SLIM_CONFIG --batch-size 1 --threads 1
"""

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple, Union

import torch
from mmengine.config import Config, DictAction
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from lab.model_zoo import task_config
from mmkcr.apis import slim
from mmkcr.apis.build import build_model, default_shape, image_shape, load_config
from mmkcr.apis.cli import Parser, command, quiet_hosts
from mmkcr.apis.latency import (
    AMP_DTYPES,
    LayerTiming,
    PairTiming,
    keep_share,
    measure_layers,
    measure_pair,
    scatter_gates,
)
from mmkcr.core import atomic_write
from mmkcr.models.utils import find_backbone
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the dense model, or of a search, retraining or '
                        'deployment: its backbone is then taken without gates and structure')
    parser.add_argument('slim_config', nargs='?', help='config of the subnet')
    parser.add_argument('--structure', help='structure file of the subnet')
    parser.add_argument('--target-macs', metavar='TARGET',
                        help='subnet with one keep ratio everywhere: 3.9G, 0.8 or 80%% of the '
                        'dense model')
    parser.add_argument('--divisor', type=int, default=8,
                        help='with --target-macs, sizes are multiples of it (%(default)s)')
    parser.add_argument('--dense', choices=('host', 'subnet'), default='host',
                        help='layers of the dense side (%(default)s)')
    parser.add_argument('--batch-size', type=int, default=8, help='images (%(default)s)')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help="height and width, or one number for both; default: the config's")
    parser.add_argument('--threads', type=int, help='of torch; default: as torch finds them')
    parser.add_argument('--compile', action='store_true', help='torch.compile both sides')
    parser.add_argument('--amp', choices=sorted(AMP_DTYPES), help='autocast on both sides')
    parser.add_argument('--device', default='cpu', help='cpu, cuda, cuda:1 (%(default)s)')
    parser.add_argument('--layers', action='store_true', help='also time, in further pairs, the '
                        'layers that shrink: what the share would be if nothing else changed; '
                        'with --dense subnet')
    parser.add_argument('--repeats', type=int, default=20, help='pairs (%(default)s)')
    parser.add_argument('--warmup', type=int, default=3, help='pairs before (%(default)s)')
    parser.add_argument('--clock', choices=('wall', 'cpu'), default='wall',
                        help='cpu: time of the calling thread, for --threads 1 on a busy machine '
                        '(%(default)s)')
    parser.add_argument('--out', metavar='FILE', help='JSON file '
                        '(work_dirs/benchmarks/latency_<config name>.json)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction,
                        help='entries of the config to overwrite: key=value')
    return parser


def task_model(model: Dict[str, Any], **backbone: Any) -> nn.Module:
    """Build a task model whose backbone has further arguments."""
    model = dict(model, backbone=dict(model['backbone'], **backbone))
    return build_model(Config(dict(model=model, default_scope='mmpretrain')))


def build_pair(args: Any) -> Tuple[nn.Module, nn.Module, Tuple[int, int, int]]:
    """The dense model, the subnet and the image's shape."""
    config = load_config(args.config, args.cfg_options)
    if not isinstance(config.get('model'), dict):
        build_model(config)  # says what is missing
    own = config.model.get('architecture', config.model).get('backbone', {}).get('structure')
    given = [args.slim_config, args.structure, args.target_macs]
    if sum(value is not None for value in given) > 1 or not any((*given, own)):
        raise ValueError('expected one of a second config, `--structure`, `--target-macs` and a '
                         f'`structure` in `{args.config}`, found '
                         f'{sum(value is not None for value in given)}')
    model = task_config(config)
    dense = task_model(model)
    shape = image_shape(args.shape) if args.shape else default_shape(
        Config(dict(model=model)), dense)
    unlearned = dict(find_backbone(dense).unlearned_gates)
    if args.dense == 'subnet':
        dense = slimmed(task_model(model, gates=unlearned), 1., 1, shape)
    if args.slim_config:
        return dense, build_model(load_config(args.slim_config, args.cfg_options)), shape
    if args.target_macs is None:
        return dense, task_model(model, structure=args.structure or own), shape
    torch.manual_seed(0)  # the units of gates with options
    supernet = task_model(model, gates=unlearned)
    return dense, slimmed(supernet, args.target_macs, args.divisor, shape), shape


def slimmed(supernet: nn.Module, target: Union[str, float], divisor: int,
            shape: Tuple[int, int, int]) -> nn.Module:
    """The subnet of a target with one keep ratio everywhere."""
    scatter_gates(supernet)
    return slim(supernet, target, divisor, shape)[0]


def report(timing: PairTiming, name: str, batch_size: int) -> str:
    """The table."""
    def row(side: str, macs: int, seconds: float) -> Tuple:
        return (side, f'{macs / 1e9:.4g}', f'{seconds * 1e3:.1f}',
                f'{seconds * 1e3 / batch_size:.2f}', f'{macs / timing.macs_dense:.3f}')

    content = timing.to_dict()
    rows = [row(side, content['macs'][side], content['seconds'][side])
            for side in ('dense', 'slim')]
    text = format_table(('', 'MACs (G)', 'ms', 'ms / image', 'MACs ratio'), rows, title=name)
    low, high = content['ratio_quartiles']
    text += f'\ntime ratio {timing.ratio:.3f} (quartiles {low:.3f} to {high:.3f})'
    if timing.share() is not None:
        low, high = content['share_quartiles']
        text += (f'\nshare of the MAC saving that became time: {timing.share():.2f} '
                 f'(quartiles {low:.2f} to {high:.2f})')
    return text


def report_layers(timing: LayerTiming) -> str:
    """What the layers that shrink contribute."""
    (dense, slim), whole = timing.sums, timing.seconds
    text = (f'{len(timing.layers)} layers that shrink: {dense * 1e3:.1f} to {slim * 1e3:.1f} ms '
            f'of {whole[0] * 1e3:.1f} to {whole[1] * 1e3:.1f} ms')
    if timing.ceiling() is not None:
        text += f'\nshare if nothing else changed: {timing.ceiling():.2f}'
    return text


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Measure, print and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if args.threads is not None:
        if args.threads < 1:
            raise ValueError(f'expected at least one thread, found `--threads` {args.threads}')
        torch.set_num_threads(args.threads)
    if args.clock == 'cpu' and (args.threads != 1 or args.device != 'cpu'):
        raise ValueError('expected `--threads 1` on the CPU for `--clock cpu`, found '
                         f'threads {args.threads} on {args.device}')
    if args.batch_size < 1:
        raise ValueError(f'expected a `--batch-size` of at least 1, found {args.batch_size}')
    if args.layers and (args.compile or args.dense != 'subnet'):
        raise ValueError('expected `--layers` with `--dense subnet`, whose layers do the same, and '
                         f'without `--compile`, found --dense {args.dense}'
                         f'{" --compile" if args.compile else ""}')
    if torch.device(args.device).type == 'cuda' and not torch.cuda.is_available():
        raise ValueError(f'expected a CUDA device for `--device` {args.device}, found none')
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        dense, subnet, shape = build_pair(args)
    images = torch.randn(args.batch_size, *shape, device=args.device)
    clock = time.thread_time if args.clock == 'cpu' else time.perf_counter
    timing = measure_pair(dense.to(args.device), subnet.to(args.device), images, args.repeats,
                          args.warmup, args.compile, args.amp, clock)
    layers = measure_layers(dense, subnet, images, args.repeats, args.warmup, args.amp,
                            clock) if args.layers else None
    name = Path(args.config).stem
    structure = getattr(find_backbone(subnet), 'structure', None)
    result = dict(
        config=args.config, slim_config=args.slim_config, structure=args.structure,
        target_macs=args.target_macs, divisor=args.divisor, dense=args.dense,
        input_shape=list(shape), batch_size=args.batch_size, compile=args.compile, amp=args.amp,
        device=args.device, clock=args.clock,
        machine=machine_info(), keep_ratio=keep_share(structure) if structure else None,
        layers=layers and layers.to_dict(), **timing.to_dict())
    print(report(timing, name, args.batch_size))
    if layers is not None:
        print(report_layers(layers))
    out = Path(args.out or f'work_dirs/benchmarks/latency_{name}.json')
    with atomic_write(out) as path:
        path.write_text(json.dumps(result, indent=2) + '\n')


if __name__ == '__main__':
    main()
