"""Time of whole models as they are tested: with proposals, NMS and masks, image by image.

The time of a detector depends on what it finds, so both sides have their trained weights and see
images of the test set. Both run in one process, in turns and in alternating order; the ratio is the
median over the images. Loading of images is not timed; the rest of `test_step` is: normalisation,
network, and all that follows it. PyTorch only: detectors with NMS in other runtimes are exported by
`export_onnx.py --end-to-end`.

Examples:
    python tools/benchmarks/test_step.py CONFIG CHECKPOINT --slim SLIM_CONFIG SLIM_CHECKPOINT
    python tools/benchmarks/test_step.py CONFIG CHECKPOINT --slim whole/config.py \\
        --slim backbone/config.py --images 100
"""

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from mmkcr.cli.command import Parser, add_trust_argument, command, quiet_hosts
from mmkcr.core import atomic_write
from mmkcr.deploy.latency import clock_for, measure_calls
from mmkcr.engine.build import build_model, default_shape, load_config, load_weights
from mmkcr.models.counting import count_parts, describe_proposals
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the dense model, with its test set')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('--slim', nargs='+', action='append', required=True,
                        metavar=('CONFIG', 'CHECKPOINT'),
                        help='another model, as often as needed; without a checkpoint that of '
                        "the config's `load_from`, as `compress` writes it")
    parser.add_argument('--images', type=int, default=100,
                        help='of the test set, the first ones (%(default)s)')
    parser.add_argument('--warmup', type=int, default=3, help='pairs before (%(default)s)')
    parser.add_argument('--threads', type=int, default=1, help='(%(default)s)')
    parser.add_argument('--device', default='cpu', help='cpu, cuda, cuda:1 (%(default)s)')
    parser.add_argument('--out', metavar='FILE', default='work_dirs/benchmarks/test_step.json',
                        help='(%(default)s)')
    add_trust_argument(parser)
    return parser


def trained(name: str, checkpoint: str | None, device: str) -> tuple[Config, nn.Module]:
    """A model with its weights, in evaluation mode, and its config.

    Raises:
        ValueError: No checkpoint is given or named by the config.
    """
    config = load_config(name)
    checkpoint = checkpoint or config.get('load_from')
    if not checkpoint:
        raise ValueError(f'expected a checkpoint after `{name}` or as its `load_from`, found none')
    model = build_model(config)
    load_weights(model, checkpoint)
    return config, model.to(device).eval()


def batches(config: Config, count: int) -> list[dict[str, Any]]:
    """The first images of the test set, one by one.

    Raises:
        ValueError: The config has no test set, or it has fewer images.
    """
    if config.get('test_dataloader') is None:
        raise ValueError(f'expected a config with `test_dataloader`, found none in '
                         f'`{config.filename}`')
    dataset = DATASETS.build(config.test_dataloader.dataset)
    if not 1 <= count <= len(dataset):
        raise ValueError(f'expected from 1 to {len(dataset)} `--images`, found {count}')
    found = (dataset[index] for index in range(count))
    return [dict(inputs=[item['inputs']], data_samples=[item['data_samples']]) for item in found]


def steps(model: nn.Module, images: Sequence[dict[str, Any]], warmup: int,
          device: str) -> Callable[[], None]:
    """A call that tests the next image; the first one again and again before they are timed."""
    order = itertools.chain(itertools.repeat(images[0], warmup), images)

    def step() -> None:
        with torch.no_grad():
            model.test_step(next(order))
        if device != 'cpu':
            torch.cuda.synchronize(device)

    return step


def report(rows: Sequence[dict[str, Any]], title: str) -> str:
    """The table."""
    return format_table(
        ('slim', 'G MACs', 'MACs', 'ms', 'time', 'quartiles'),
        [(row['slim'], '{dense:.4g} to {slim:.4g}'.format(
            **{side: row['macs'][side] / 1e9 for side in ('dense', 'slim')}),
          f'{row["macs"]["ratio"]:.1%}',
          '{:.1f} to {:.1f}'.format(*(1e3 * row['seconds'][side] for side in ('dense', 'slim'))),
          f'{row["ratio"]:.3f}', '{:.3f} to {:.3f}'.format(*row['ratio_quartiles']))
         for row in rows], title=title)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if args.warmup < 0 or args.threads < 1:
        raise ValueError(f'expected no negative `--warmup` and at least one of `--threads`, found '
                         f'{args.warmup} and {args.threads}')
    long = [side for side in args.slim if len(side) > 2]
    if long:
        raise ValueError(f'expected a config and a checkpoint after `--slim`, found {long[0]}')
    torch.set_num_threads(args.threads)
    clock = clock_for('eager', args.threads, args.device)
    config, dense = trained(args.config, args.checkpoint, args.device)
    shape, images = default_shape(config, dense), batches(config, args.images)
    whole, rows = sum(count_parts(dense, shape).values()), []
    for side in args.slim:
        _, slim = trained(*side, *[None] * (2 - len(side)), args.device)
        calls = (steps(model, images, args.warmup, args.device) for model in (dense, slim))
        timing, = measure_calls(*calls, repeats=len(images), warmup=args.warmup, clock=clock)
        timing = replace(timing, macs_dense=whole, macs_slim=sum(count_parts(slim, shape).values()))
        rows.append(dict(
            slim=side[0], macs=dict(dense=whole, slim=timing.macs_slim, ratio=timing.macs_ratio),
            seconds=dict(zip(('dense', 'slim'), timing.seconds)), ratio=timing.ratio,
            ratio_quartiles=timing.quartiles, samples=dict(dense=timing.dense, slim=timing.slim)))
        with atomic_write(Path(args.out)) as path:  # a call that is stopped leaves what it has
            path.write_text(json.dumps(dict(arguments=vars(args), machine=machine_info(),
                                            rows=rows), indent=1) + '\n')
    print(report(rows, f'{args.config}, {len(images)} images'))
    if describe_proposals(dense):
        print(describe_proposals(dense))


if __name__ == '__main__':
    main()
