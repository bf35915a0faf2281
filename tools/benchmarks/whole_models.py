"""Sizes of whole detectors and segmentors under one budget: what each part keeps.

Weights are random, and so are the units that stay: one keep ratio for all sites of backbone, neck
and heads. The MACs are counted on the network that was built.

Example:
    python tools/benchmarks/whole_models.py \\
        mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_ade20k-512x512.py \\
        --targets 80% 60%
"""

import copy
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.model_zoo import uninitialized
from lab.random_subnets import random_subnet
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.closed_form.options import open_search_space
from mmkcr.core import count_params
from mmkcr.core.checks import image_shape
from mmkcr.engine.build import build_model, default_shape, load_config
from mmkcr.models.counting import count_parts, describe_proposals, part_rows
from mmkcr.models.tasks import is_dense_task
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of a dense detector or segmentor')
    parser.add_argument('--targets', nargs='+', default=['80%', '60%'],
                        help='most MACs of the whole model (%(default)s)')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help='height and width of the image, or one number for both; default: '
                        'that of the config')
    parser.add_argument('--divisor', type=int, default=8,
                        help='sizes are multiples of it, or full (%(default)s)')
    parser.add_argument('--json', action='store_true', help='print JSON instead of tables')
    return parser


def measure(model: Any, target: str, shape: Sequence[int], dense: dict[str, int],
            divisor: int) -> dict[str, Any]:
    """Sizes of one subnet, by part.

    Args:
        model (nn.Module): Dense task model; it is left as it is.
        target (str): Most MACs.
        shape (Sequence[int]): (C, H, W).
        dense (dict[str, int]): MACs of the dense model by part.
        divisor (int): Of the sizes.
    """
    model = copy.deepcopy(model)
    space = open_search_space(model, None, 'model')
    subnet, structure = random_subnet(model, target, shape, 'model', divisor)
    slim = count_parts(subnet, shape)
    macs, sites = sum(slim.values()), [site.path for site in space.sites.values()]
    if macs != structure.macs['subnet']:
        raise RuntimeError(f'expected {structure.macs["subnet"]} MACs, found {macs} of the network '
                           'that was built')
    return dict(target=target, share=macs / sum(dense.values()), params=count_params(subnet),
                sites=len(sites), beyond=sum(not path.startswith('backbone.') for path in sites),
                parts={part: (count, slim.get(part, 0)) for part, count in dense.items()})


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Count and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    config = load_config(args.config)
    with uninitialized():
        model = build_model(config)
    if not is_dense_task(model):
        raise ValueError(f'expected the config of a detector or segmentor, found one of a '
                         f'`{type(model).__name__}`')
    shape = image_shape(args.shape) if args.shape else default_shape(config, model)
    dense, params = count_parts(model, shape), count_params(model)
    found = [measure(model, target, shape, dense, args.divisor) for target in args.targets]
    if args.json:
        print(json.dumps(dict(config=args.config, input_shape=list(shape), params=params,
                              rows=found), indent=2))
        return
    for row in found:
        print(f'{row["target"]}: {row["share"]:.2%} of the MACs for one image of {shape[1]} x '
              f'{shape[2]}, {row["params"] / 1e6:.4g} of {params / 1e6:.4g} M parameters, '
              f'{row["sites"]} sites, {row["beyond"]} of them outside of the backbone')
        print(format_table(('part', 'dense, G MACs', 'slim', 'share'), part_rows(row['parts'])))
    if describe_proposals(model):
        print(describe_proposals(model))


if __name__ == '__main__':
    main()
