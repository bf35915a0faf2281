"""Teach a compressed network the outputs of its dense one, on unlabelled images.

Writes the best network on held-out images over the network in FOLDER, a folder of
compress.py; it is never worse than the network before. A call that was killed goes on if it is
repeated. Runs on a GPU if there is one, and in several processes under torchrun.

Example:
    mmkcr distil CONFIG CHECKPOINT slim 30min --calibration FOLDER
"""

from dataclasses import dataclass
from typing import ClassVar

from mmkcr.apis.compress_files import FileOptions, build_task, distil_files
from mmkcr.cli.fields import Configured, Trusting, argument, check_file, runs


@dataclass(frozen=True, kw_only=True)
class DistilJob(Configured, Trusting, FileOptions):
    """Arguments of ``mmkcr distil``."""

    offers: ClassVar = dict(
        config=dict(positional=True), checkpoint=dict(positional=True),
        calibration=dict(metavar='FOLDER'),
        images=dict(default=512, help='calibration images at most (%(default)s)'))
    folder: str = argument('of the compressed network', positional=True)
    length: str = argument('steps, or a time such as 30min', positional=True)


@runs(DistilJob)
def main(args: DistilJob) -> None:
    """Distil, write and print."""
    check_file(args.checkpoint, 'a checkpoint')
    task = build_task(args)
    print(distil_files(task, args.folder, args.length))
