"""Slim a trained supernet: search config + checkpoint + budget in, subnet out.

Writes structure.json and subnet.pth (weights inherited), which an ordinary
config of the task model loads with backbone=dict(structure='.../structure.json').

Beside an EMAHook, a checkpoint's state_dict holds the averaged weights and
gates: these are used. --online-weights takes those of the optimizer instead.

Examples:
    python tools/slim.py CONFIG CHECKPOINT --target-macs 12.6G --divisor 8
    python tools/slim.py CONFIG CHECKPOINT --target-macs 80% --shape 224 224
    python tools/slim.py CONFIG CHECKPOINT --target-bytes 40MB
    python tools/slim.py CONFIG CHECKPOINT --target-latency 12ms --runtime onnxruntime \\
        --threads 1 --batch 1
"""

from typing import Optional, Sequence

from mmkcr.apis.arguments import add_targets, chosen_target
from mmkcr.apis.build import image_shape
from mmkcr.apis.cli import Parser, add_options_argument, add_trust_argument, command, quiet_hosts
from mmkcr.apis.latency_table import add_table_arguments, chosen_table
from mmkcr.apis.slim_files import STRUCTURE, WEIGHTS, SlimResult, slim_files
from mmkcr.models.counting import part_rows
from mmkcr.visualization import format_table


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the search')
    parser.add_argument('checkpoint', help='checkpoint of the search')
    target = parser.add_mutually_exclusive_group()
    add_targets(target, '; default: the channels whose gates are open')
    add_table_arguments(parser)
    parser.add_argument('--divisor', type=int, default=1,
                        help='sizes are multiples of it, or full (%(default)s)')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help='height and width of the image that MACs are counted for, or one '
                        'number for both; default: that of the config')
    parser.add_argument('--part', choices=('model', 'backbone'),
                        help='what the target is about; default: what the price of the '
                        'config counts, else the backbone of a detector, else the model')
    parser.add_argument('--out', metavar='DIR',
                        help='folder to write to (work_dirs/<config name>/slim)')
    parser.add_argument('--online-weights', action='store_true',
                        help="of a checkpoint with EMA, the optimizer's weights")
    add_options_argument(parser)
    add_trust_argument(parser)
    return parser


def print_summary(result: SlimResult) -> None:
    """Print what was kept, and sizes before and after."""
    structure, sizes = result.structure, result.bytes
    rows = [(name, site.total, len(site.kept), f'{len(site.kept) / site.total:.1%}')
            for name, site in structure.sites.items()]
    print(format_table(('site', 'channels', 'kept', 'share'), rows))
    rows = []
    for name, before, after, unit, scale in (
            ('MACs (G)', structure.macs['dense'], structure.macs['subnet'], '.4g', 1e9),
            ('parameters (M)', structure.params['dense'], structure.params['subnet'], '.4g', 1e6),
            ('weights (MB)', sizes['dense'], sizes['subnet'], '.2f', 1e6)):
        rows.append((name, format(before / scale, unit), format(after / scale, unit),
                     f'{after / before:.1%}'))
    print(format_table(('', 'dense', 'subnet', 'share'), rows))
    height, width = structure.macs['input_shape'][1:]
    counted = structure.macs.get('part', 'model')
    print(f'MACs of the {counted} for one image of {height} x {width}; the search checkpoint with '
          f'its optimizers has {sizes["checkpoint"] / 1e6:.2f} MB.')
    if result.parts:
        print(format_table(('part', 'MACs (G)', 'subnet', 'share'), part_rows(result.parts)))
    for said in (result.proposals, result.latency):
        if said:
            print(said)
    print(f'Wrote {result.folder / STRUCTURE} and {result.folder / WEIGHTS}')


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Slim, write and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    cost, target = chosen_target(args)
    print_summary(slim_files(
        args.config, args.checkpoint, target, args.divisor,
        image_shape(args.shape) if args.shape else None, args.out, args.online_weights,
        args.cfg_options, args.part, chosen_table(args), args.force_table,
        cost))


if __name__ == '__main__':
    main()
