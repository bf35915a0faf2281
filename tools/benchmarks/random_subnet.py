"""Write the config of a random subnet, which ``mmkcr latency`` times against the dense network.

All sites keep the same share, and their units are drawn at random: time depends on how many units
are kept, and on whether they are neighbours. The structure is written beside the config.

Example:
    python tools/benchmarks/random_subnet.py \\
        mmpretrain::swin_transformer/swin-tiny_16xb64_in1k.py --target-macs 70% \\
        --sites mlp_hidden --out random/swin-tiny_70.py
    mmkcr latency random/swin-tiny_70.py --runtime onnxruntime
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from mmengine.config import DictAction

from lab.random_subnets import random_pair
from mmkcr.cli.command import CFG_OPTIONS, Parser, command, quiet_hosts
from mmkcr.core import atomic_write
from mmkcr.engine.build import dense_config, image_shape, load_config
from mmkcr.models.tasks import search_space


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='of a dense model or a search')
    parser.add_argument('--target-macs', required=True, metavar='TARGET',
                        help="3.9G, 0.8 or 80%% of the dense network's MACs")
    parser.add_argument('--sites', nargs='+', metavar='KIND',
                        help='default: those of a search of the backbone, else those that `mmkcr '
                        'compress` would take')
    parser.add_argument('--part', default='model', choices=('model', 'backbone'),
                        help='whose MACs are meant (%(default)s)')
    parser.add_argument('--divisor', type=int, default=8,
                        help='sizes are multiples of it, or full (%(default)s)')
    parser.add_argument('--group', type=int, default=1,
                        help='so many neighbouring units are kept together (%(default)s)')
    parser.add_argument('--shape', type=int, nargs='+', metavar='N',
                        help='height and width of the image, or one number for both; default: '
                        'that of the config')
    parser.add_argument('--out', required=True, metavar='FILE', help='the config')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help=CFG_OPTIONS)
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Draw, slice and write."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    config = load_config(args.config, args.cfg_options)
    shape = image_shape(args.shape) if args.shape else None
    _, slim, shape, structure = random_pair(config, args.target_macs, args.part, args.sites, shape,
                                            args.divisor, args.group)
    config, out = dense_config(config), Path(args.out)
    path = out.with_suffix('.json').resolve()
    structure.save(path)
    of_package = config.model.backbone.type.startswith('mmkcr.') and not args.sites
    config.compression = dict(sites='own' if of_package else list(search_space(slim).kinds),
                              structure=str(path))
    with atomic_write(out) as temporary:
        temporary.write_text(config.pretty_text)
    macs = structure.macs
    print(f'{out}: {macs["subnet"] / macs["dense"]:.3f} of the MACs for one image of {shape[1]} x '
          f'{shape[2]}')


if __name__ == '__main__':
    main()
