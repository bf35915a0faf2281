"""Time the first minutes of three users: of mmdet, of mmseg and of timm.

Each path is what README.md says, line by line, in an empty folder, with a config of the host,
random weights and a folder of images. Prints the number of lines, the seconds of each on the clock,
and those of processors, which a busy machine does not lengthen.

Example:
    python tools/benchmarks/user_paths.py --images data/digits/scenes/images/training --count 16
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.closed_form.images import SUFFIXES
from mmkcr.engine.build import build_model, load_config
from mmkcr.visualization import format_table, shown

HOSTS = dict(mmdet='mmdet::pvt/retinanet_pvtv2-b0_fpn_1x_coco.py',
             mmseg='mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py')
TIMM = """import timm, torch
from mmkcr.apis import compress
model = timm.create_model('vit_tiny_patch16_224').eval()
result = compress(model, torch.load('images.pt'), '{target}')
result.structure.save('structure.json')
"""


class UserPath(NamedTuple):
    """A path of a user.

    Args:
        name (str): Whose.
        model (str): What is compressed.
        lines (list[list[str]]): Commands of mmkcr, or one script of Python.
        written (int): Lines that the user writes.
    """

    name: str
    model: str
    lines: list[list[str]]
    written: int


def user_paths(images: Path, count: int, target: str) -> list[UserPath]:
    """The three paths."""
    found = []
    for name, config in HOSTS.items():
        lines = [['compress', config, 'dense.pth', '--target-macs', target, '--calibration',
                  str(images), '--images', str(count), '--out', 'slim'],
                 ['flops', 'slim/config.py'],
                 ['export', 'slim/config.py', 'slim/subnet.pth']]
        found.append(UserPath(name, Path(config).stem, lines, len(lines)))
    found.append(UserPath('timm', 'vit_tiny_patch16_224', [['-c', TIMM.format(target=target)]],
                          TIMM.count('\n')))
    return found


def run(path: UserPath, folder: Path, count: int) -> list[tuple[float, float]]:
    """Seconds of each line, on the clock and of processors.

    Raises:
        RuntimeError: A line failed.
    """
    if path.name in HOSTS:
        model = build_model(load_config(HOSTS[path.name]))
        torch.save(dict(state_dict=model.state_dict(), meta={}), folder / 'dense.pth')
        base = [sys.executable, '-m', 'mmkcr']
    else:
        torch.save(torch.rand(count, 3, 224, 224), folder / 'images.pt')
        base = [sys.executable]
    seconds = []
    for line in path.lines:
        start = time.perf_counter(), _children()
        done = subprocess.run([*base, *line], cwd=folder, capture_output=True, text=True,
                              env=_environment())
        seconds.append((time.perf_counter() - start[0], _children() - start[1]))
        if done.returncode:
            raise RuntimeError(f'expected `{line[0]}` of the path of {path.name} to end, found '
                               f'status {done.returncode}: {done.stderr[-500:]}')
    return seconds


def _children() -> float:
    """Seconds of processors that ended child processes took."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    """This package's folder for the processes of the lines."""
    import mmkcr
    before = os.environ.get('PYTHONPATH', '')
    return dict(os.environ, PYTHONPATH=f'{Path(mmkcr.__file__).parents[1]}:{before}')


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run, time and print."""
    parser = Parser(__doc__)
    parser.add_argument('--images', type=Path, required=True, help='folder of images')
    parser.add_argument('--count', type=int, default=16, help='of them (%(default)s)')
    parser.add_argument('--target-macs', default='80%', help='of the dense model (%(default)s)')
    parser.add_argument('--only', choices=(*HOSTS, 'timm'), nargs='+',
                        default=(*HOSTS, 'timm'), help='paths (all)')
    args = parser.parse_args(argv)
    quiet_hosts()
    if not args.images.is_dir():
        raise FileNotFoundError(f'expected a folder of images at `{args.images}`, found none')
    images = [path for path in args.images.rglob('*') if path.suffix.lower() in SUFFIXES]
    if len(images) < args.count:
        raise ValueError(f'expected at least {args.count} images below `{args.images}`, found '
                         f'{len(images)}')
    rows = []
    paths = user_paths(args.images.resolve(), args.count, args.target_macs)
    for path in shown([path for path in paths if path.name in args.only], 'Users'):
        with tempfile.TemporaryDirectory() as folder:
            seconds = run(path, Path(folder), args.count)
        wall, cpu = zip(*seconds)
        rows.append((path.name, path.model, path.written, f'{sum(wall):.0f}',
                     f'{sum(cpu):.0f}', ', '.join(f'{value:.0f}' for value in cpu)))
    machine = machine_info()
    print(format_table(('path', 'model', 'lines', 'seconds', 'of processors', 'of each line'),
                       rows))
    print(f'{machine["cpu"]}, {machine["cores"]} cores, load {machine["load_average"]}, torch '
          f'{machine["torch"]}, mmkcr {machine["mmkcr"]}; {args.count} images, '
          f'target {args.target_macs}')


if __name__ == '__main__':
    main()
