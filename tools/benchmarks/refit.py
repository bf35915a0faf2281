"""Seconds and memory of the closed-form refit of one layer: moments, order of units, weights.

Of random activations through a ReLU, as wide as the streams of ViT-S and ViT-B and the hidden
layers of ViT-B and ViT-L; the consumer has a quarter of the width, and half of the units stay.
Moments are timed for a share of the rows and given for all. Memory is the process's peak (of the
device on CUDA), so widths are measured in ascending order. The file is written after each width.

Examples:
  python tools/benchmarks/refit.py --widths 384 768
  python tools/benchmarks/refit.py --groups 8 --device cuda
"""

import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from mmkcr.cli.command import Parser, command
from mmkcr.core import atomic_write
from mmkcr.functional.moments import CHUNK, Moments
from mmkcr.functional.pivots import others, pivot_order, ridge, solve_psd
from mmkcr.functional.refit import refit
from mmkcr.visualization import format_table


def gram_matrix(*weights: Tensor) -> Tensor:
    """``sum_i W_i^T W_i`` (d, d) in fp64 of consumers W_i (m_i, d) of the same units.

    A factor between a consumer and the residual stream, such as a layer scale, must already be
    multiplied into the consumer's rows.
    """
    return sum(weight.double().T @ weight.double() for weight in weights)


def reconstruction_error(covariance: Tensor, gram: Tensor, kept: Tensor,
                         rho: float = 1e-3) -> float:
    """Summed squared error of the outputs when all channels are reconstructed from ``kept``.

    That is ``tr(W (I - A) C (I - A)^T W^T)`` with the A of :func:`mmkcr.functional.refit.refit`.
    It is the error on the calibration tokens, without the noise that the error curve of an order
    includes.

    Args:
        covariance (Tensor): C, shape (d, d).
        gram (Tensor): G, shape (d, d).
        kept (Tensor): Indices of the kept channels, (k,).
        rho (float): Relative ridge. Defaults to 1e-3.
    """
    covariance, gram = covariance.double(), gram.double()
    rest = others(kept, len(covariance))
    given = covariance[kept][:, kept]
    ridged = given + ridge(covariance, rho)[kept].diag()
    shares = solve_psd(ridged, covariance[kept][:, rest])  # A[rest]^T, (k, d - k)
    cross = shares.T @ covariance[kept][:, rest]
    # (I - A) C (I - A)^T of the removed channels; A copies the kept ones, whose rows are 0
    left = covariance[rest][:, rest] - cross - cross.T + shares.T @ given @ shares
    return float((gram[rest][:, rest] * left).sum().clamp(min=0))


def moments_of(features: Tensor, targets: Tensor | None = None) -> Moments:
    """Moments of rows that are held in memory.

    Args:
        features (Tensor): Shape (n, d).
        targets (Tensor, optional): Shape (n, p).
    """
    width = 0 if targets is None else targets.shape[-1]
    return Moments(features.shape[-1], width, device=features.device).add(features, targets)


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--widths', type=int, nargs='+', default=[384, 768, 3072, 4096],
                        help='units of the layer (%(default)s)')
    parser.add_argument('--tokens', type=int, default=25000,
                        help='rows of activations (%(default)s: a quarter of those of 512 images '
                        'of 14 x 14 patches)')
    parser.add_argument('--groups', type=int, default=1,
                        help='channels of a unit (%(default)s)')
    parser.add_argument('--keep', type=float, default=0.5, help='share of units (%(default)s)')
    parser.add_argument('--threads', type=int, help="of the CPU; default: torch's own choice")
    parser.add_argument('--device', default='cpu', help='cpu or cuda (%(default)s)')
    parser.add_argument('--clock', choices=('wall', 'cpu'), default='wall',
                        help='cpu: time of the calling thread, for --threads 1 on a busy machine '
                        '(%(default)s)')
    parser.add_argument('--out', metavar='FILE', default='work_dirs/benchmarks/refit.json',
                        help='(%(default)s)')
    return parser


def timed(function: Callable[[], Any], device: torch.device,
          clock: Callable[[], float]) -> tuple[Any, float]:
    """What a function returns, and its seconds."""
    def now() -> float:
        if device.type == 'cuda':
            torch.cuda.synchronize(device)
        return clock()

    start = now()
    result = function()
    return result, now() - start


def peak_memory(device: torch.device) -> int:
    """Bytes at the peak: of the device, or of the process on a CPU."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(width: int, tokens: int, groups: int, keep: float, device: torch.device,
            clock: Callable[[], float]) -> dict[str, Any]:
    """One width: seconds of every part, and the share of the output's variance that is lost."""
    torch.manual_seed(0)
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats(device)  # of earlier widths
    sample = min(tokens, max(2 * width, CHUNK))
    inputs = torch.randn(sample, max(1, width // 4), device=device)
    mix = torch.randn(width, inputs.shape[1], device=device) / inputs.shape[1]**0.5
    rows = torch.relu(inputs @ mix.T)
    weight = torch.randn(max(1, width // 4), width, device=device)
    moments, seconds = timed(lambda: Moments(width, device=device).add(rows), device, clock)
    row = dict(width=width, moments=seconds * tokens / sample)
    covariance, gram = moments.covariance, gram_matrix(weight)
    order, row['order'] = timed(lambda: pivot_order(covariance, gram, groups), device, clock)
    count = max(1, round(keep * len(order.order)))
    kept = (order.order[:count, None] * groups + torch.arange(groups, device=device)).flatten()
    kept = kept.sort().values
    _, row['refit'] = timed(
        lambda: refit(weight, None, covariance, moments.mean, kept), device, clock)
    return dict(row, kept=count, lost=float(order.errors[count] / order.errors[0]),
                memory=peak_memory(device))


def table(rows: list[dict[str, Any]]) -> str:
    """One line a width."""
    return format_table(
        ('units', 'moments (s)', 'order (s)', 'refit (s)', 'peak memory (MB)'),
        [(row['width'], *(f'{row[part]:.2f}' for part in ('moments', 'order', 'refit')),
          f'{row["memory"] / 1e6:.0f}') for row in rows])


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    args = make_parser().parse_args(argv)
    if min(*args.widths, args.tokens, args.groups) < 1 or not 0 < args.keep <= 1:
        raise ValueError('expected widths, tokens and groups of at least 1 and a share to keep '
                         f'within 0 and 1, found {args.widths}, {args.tokens}, {args.groups} and '
                         f'{args.keep}')
    device = torch.device(args.device)
    if args.clock == 'cpu' and (args.threads != 1 or device.type != 'cpu'):
        raise ValueError('expected `--threads 1` on the CPU for `--clock cpu`, found threads '
                         f'{args.threads} on {args.device}')
    clock = time.thread_time if args.clock == 'cpu' else time.perf_counter
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    rows: list[dict[str, Any]] = []

    def write() -> None:
        with atomic_write(Path(args.out)) as path:
            path.write_text(json.dumps(dict(arguments=vars(args), machine=machine_info(),
                                            rows=rows), indent=1) + '\n')

    for width in sorted(args.widths):
        rows.append(measure(width, args.tokens, args.groups, args.keep, device, clock))
        write()
    print(table(rows))


if __name__ == '__main__':
    main()
