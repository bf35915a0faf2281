"""Depthwise convolution in the place of attention: one block.

MACs, parameters, latency and memory of every mode and size (the paper's table 1, whose G count two
for a multiply-accumulate). The attention is fused (scaled_dot_product_attention); mhsa-naive is
attention that stores its map. Kernels and ensembled weights are computed once before, as an
exporter folds them. The file is written after each measurement. latency.py times whole networks.

Examples:
  python tools/benchmarks/attention_block.py --sizes base --repeats 5
  python tools/benchmarks/attention_block.py --device cuda --dtype fp16 --runtime compiled
"""

import json
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.attention_profile import MODES, SIZES, profile_block
from lab.machine import machine_info
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import atomic_write
from mmkcr.deploy.latency import AMP_DTYPES
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--modes', nargs='+', choices=MODES, default=list(MODES),
                        help='of the block (all)')
    parser.add_argument('--sizes', nargs='+', choices=sorted(SIZES), default=['base', 'large'],
                        help='(%(default)s)')
    parser.add_argument('--grid', type=int, nargs='+', default=[24], metavar='N',
                        help='sides of the square token grids of the block (%(default)s: 576 '
                        'tokens, 336 px with patches of 14)')
    parser.add_argument('--batch-size', type=int, default=1, help='(%(default)s)')
    parser.add_argument('--threads', type=int, help="of the CPU; default: torch's own choice")
    parser.add_argument('--device', default='cpu', help='cpu or cuda (%(default)s)')
    parser.add_argument('--dtype', choices=sorted(AMP_DTYPES), help='of weights; default: fp32')
    parser.add_argument('--runtime', choices=('eager', 'compiled'), default='eager',
                        help='(%(default)s)')
    parser.add_argument('--clock', choices=('wall', 'cpu'), default='wall',
                        help='cpu: time of the process, for --threads 1 on a busy machine '
                        '(%(default)s)')
    parser.add_argument('--repeats', type=int, default=10, help='(%(default)s)')
    parser.add_argument('--warmup', type=int, default=3, help='calls before (%(default)s)')
    parser.add_argument('--out', metavar='FILE', help='(%(default)s)',
                        default='work_dirs/benchmarks/attention_block.json')
    return parser


def block_table(rows: list[dict[str, Any]]) -> str:
    """One line a block."""
    return format_table(
        ('size', 'tokens', 'mode', 'MACs (G)', 'G of the paper', 'params (M)', 'ms', 'memory (MB)'),
        [(row['size'], row['tokens'], row['mode'], f'{row["macs"] / 1e9:.3f}',
          f'{2 * row["macs"] / 1e9:.2f}', f'{row["params"] / 1e6:.2f}',
          f'{row["seconds"] * 1e3:.2f}', f'{row["memory"] / 1e6:.2f}') for row in rows])


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if min(args.batch_size, args.repeats, *args.grid) < 1 or args.warmup < 0:
        raise ValueError('expected a batch size, repeats and grid of at least 1 and no negative '
                         f'warm-up, found {args.batch_size}, {args.repeats}, {args.grid} and '
                         f'{args.warmup}')
    if args.clock == 'cpu' and (args.threads != 1 or args.device != 'cpu'):
        raise ValueError('expected `--threads 1` on the CPU for `--clock cpu`, found '
                         f'threads {args.threads} on {args.device}')
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    common = dict(batch_size=args.batch_size, device=args.device, dtype=args.dtype,
                  runtime=args.runtime, repeats=args.repeats, warmup=args.warmup,
                  clock=time.process_time if args.clock == 'cpu' else time.perf_counter)
    blocks = []
    # written after each: a call that is stopped leaves what it has measured
    for size, side, mode in product(args.sizes, args.grid, args.modes):
        blocks.append(profile_block(mode, size, (side, side), **common))
        with atomic_write(Path(args.out)) as path:
            path.write_text(json.dumps(dict(arguments=vars(args), machine=machine_info(),
                                            blocks=blocks), indent=1) + '\n')
    print(block_table(blocks))


if __name__ == '__main__':
    main()
