"""Teach a compressed network what its dense one does, on unlabelled images.

Writes the best network on held-out images in the place of that in FOLDER, a folder of
compress.py; it is never worse than what was there. A call that was killed goes on if it is
repeated. Runs on a GPU if there is one, and in several processes under torchrun.

Example:
    python tools/distil.py CONFIG CHECKPOINT slim 30min --calibration FOLDER
"""

from collections.abc import Sequence

from mmkcr.apis.cli import Parser, add_options_argument, add_trust_argument, command, quiet_hosts
from mmkcr.apis.compress_files import compress_task
from mmkcr.apis.distil_files import distil_files
from mmkcr.apis.launch import check_file


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Distil, write and print."""
    parser = Parser(__doc__)
    parser.add_argument('config', help='config of the dense model, a file or library::path')
    parser.add_argument('checkpoint', help='its weights')
    parser.add_argument('folder', help='of the compressed network')
    parser.add_argument('length', help='steps, or a time such as 30min')
    parser.add_argument('--calibration', metavar='FOLDER',
                        help='folder of images (default: the training set of the config)')
    parser.add_argument('--images', type=int, default=512, help='at most (%(default)s)')
    add_options_argument(parser)
    add_trust_argument(parser)
    args = parser.parse_args(argv)
    quiet_hosts()
    check_file(args.checkpoint, 'a checkpoint')
    task = compress_task(args.config, args.checkpoint, args.calibration, args.images,
                         out=args.folder, options=args.cfg_options)
    result = distil_files(task, args.folder, args.length)
    print(f'Distance to the dense network on held-out images: {result.errors[0]:.4f} before, '
          f'{result.errors[result.best]:.4f} after step {result.best} of {result.steps}')


if __name__ == '__main__':
    main()
