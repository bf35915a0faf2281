"""Publish a trained model: one file with its weights, its structure and its metadata.

Optimizer, schedules, logs, the second set of weights beside an EMAHook and the state of
regularisers stay behind. The name ends in the first 8 digits of the file's SHA-256. Any
reader that runs no code takes the file (torch.load with weights_only=True), and so does
a config as its structure file: compression=dict(structure='NAME-HASH.pth'), or
backbone=dict(structure='NAME-HASH.pth') of a `mmkcr.Searchable`.

Examples:
    python tools/publish.py CONFIG CHECKPOINT --out published
    python tools/test.py CONFIG published/NAME-HASH.pth \\
        --cfg-options compression.structure=published/NAME-HASH.pth
"""

from typing import Optional, Sequence

from mmkcr.apis.cli import Parser, add_options_argument, add_trust_argument, command, quiet_hosts
from mmkcr.apis.publish import publish


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of a deployment, retraining or dense model')
    parser.add_argument('checkpoint', nargs='?',
                        help='its checkpoint (`load_from` of the config)')
    parser.add_argument('--out', metavar='DIR', help="folder (the checkpoint's)")
    parser.add_argument('--name', help="of the file, before the hash (the config's)")
    parser.add_argument('--online-weights', action='store_true',
                        help="of a checkpoint with EMA, the optimizer's weights")
    parser.add_argument('--half', action='store_true',
                        help='store matrices in 16 bits: half the size')
    add_options_argument(parser)
    add_trust_argument(parser)
    return parser


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Publish and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    found = publish(args.config, args.checkpoint, args.out, args.name, args.online_weights,
                    args.cfg_options, args.half)
    structure = 'with its structure' if found.meta['structure'] else 'dense'
    print(f'{found.meta["model"]}, {found.meta["params"] / 1e6:.4g} M parameters, {structure}: '
          f'{found.bytes["published"] / 1e6:.2f} MB of {found.bytes["checkpoint"] / 1e6:.2f} MB')
    print(f'Wrote {found.path}')


if __name__ == '__main__':
    main()
