"""Write the few lines beside your own config that search, retrain or fine-tune a smaller model.

Your config stays as it is: the new file inherits from it and adds `compression`. Methods: kcr
(channels of the MLPs), dcs (the same, with masks on queries and keys), ofb (heads and hidden
units, pruned while it trains), dwconv (blocks whose attention becomes a convolution).

Examples:
    python tools/init.py mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py --target-macs 70%
    python tools/init.py my_config.py --method ofb --stage search
    python tools/init.py my_config.py --method ofb --stage retrain
    python tools/init.py my_config.py --stage compress
"""

from typing import Optional, Sequence

from mmkcr.apis.cli import Parser, command, quiet_hosts
from mmkcr.apis.init_config import METHODS, STAGES, init_config


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='your config, a file or library::path')
    parser.add_argument('--method', choices=METHODS, default='kcr', help='(%(default)s)')
    parser.add_argument('--stage', choices=STAGES, default='search',
                        help='compress: fine-tuning of what `compress` left, of no method '
                        '(%(default)s)')
    parser.add_argument('--target-macs', default='70%', metavar='TARGET',
                        help='MACs that a search aims at: 12.6G, 450M, 0.7 or 70%% of the dense '
                        'model (%(default)s)')
    parser.add_argument('--part', choices=('model', 'backbone'),
                        help='what the target is about (backbone of a detector or segmentor, else '
                        'model)')
    parser.add_argument('--out', metavar='FILE', help='file to write (<method>-<stage>_<name>.py)')
    parser.add_argument('--search', metavar='NAME', help='of the search that a retraining follows '
                        '(<method>-search_<name>)')
    parser.add_argument('--force', action='store_true', help='overwrite a file that is there')
    return parser


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Check the backbone, write and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    result = init_config(args.config, args.method, args.stage, args.target_macs, args.out,
                         args.force, args.search, args.part)
    print(result.text, end='')
    print(f'Wrote {result.path}')


if __name__ == '__main__':
    main()
