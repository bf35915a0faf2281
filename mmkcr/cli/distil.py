"""Teach a compressed network what its dense one does, on unlabelled images.

Writes the best network on held-out images in the place of that in FOLDER, a folder of
compress.py; it is never worse than what was there. A call that was killed goes on if it is
repeated. Runs on a GPU if there is one, and in several processes under torchrun.

Example:
    mmkcr distil CONFIG CHECKPOINT slim 30min --calibration FOLDER
"""

from dataclasses import dataclass

from mmkcr.apis.compress_files import CompressTask
from mmkcr.cli.fields import Configured, Trusting, argument, runs
from mmkcr.cli.launch import check_file


@dataclass(frozen=True)
class DistilJob(Configured, Trusting):
    """Arguments of ``mmkcr distil``."""

    config: str = argument('config of the dense model, a file or library::path', positional=True)
    checkpoint: str = argument('its weights', positional=True)
    folder: str = argument('of the compressed network', positional=True)
    length: str = argument('steps, or a time such as 30min', positional=True)
    calibration: str | None = argument(
        'folder of images (default: the training set of the config)', metavar='FOLDER')
    images: int = argument('at most (%(default)s)', 512)


@runs(DistilJob)
def main(args: DistilJob) -> None:
    """Distil, write and print."""
    check_file(args.checkpoint, 'a checkpoint')
    task = CompressTask(args.config, args.checkpoint, args.calibration, args.images,
                        out=args.folder, options=args.cfg_options)
    print(task.distil(args.folder, args.length))
