"""Closed-form slimming of networks at full size: seconds, memory, MACs, and whether the law holds.

Weights and images are random, so nothing is said about accuracy. Each config is compressed by
`mmkcr compress`, in a process and an empty folder of its own, for images of the config's size; then
the written config and checkpoint are built and loaded strictly, their MACs counted, and the law
(supernet with hard gates = subnet = reloaded subnet) is measured on the backbone with random units.

Example:
    python tools/benchmarks/full_size.py mmpretrain::swin_transformer/swin-base_16xb64_in1k.py \\
        mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py --images 4
    python tools/benchmarks/full_size.py mmpretrain::deit/deit-base_16xb64_in1k.py --images 512
"""

import copy
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.kind_coverage import Family, law_error
from lab.machine import machine_info
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core import count_params
from mmkcr.core.file_names import CONFIG, SUBNET
from mmkcr.engine.build import build_model, default_shape, load_config, load_weights
from mmkcr.models.counting import count_macs
from mmkcr.models.sites import why_not
from mmkcr.models.tasks import is_dense_task
from mmkcr.visualization import format_table, show_progress

COLUMNS = ('model', 'image', 'params (M)', 'MACs (G)', 'kept', 'seconds', 'of processors',
           'peak GB', 'law')


class Spent(NamedTuple):
    """What a process took.

    Args:
        wall (float): Seconds on the clock.
        cpu (float): Seconds of processors.
        peak (float): GB of memory.
    """

    wall: float
    cpu: float
    peak: float


def run(words: Sequence[str], folder: Path) -> Spent:
    """Run a command of mmkcr in a folder.

    Raises:
        RuntimeError: It failed.
    """
    import mmkcr
    path = f'{Path(mmkcr.__file__).parents[1]}:{os.environ.get("PYTHONPATH", "")}'
    start, log = time.perf_counter(), folder / 'log.txt'
    with open(log, 'w') as file:
        process = subprocess.Popen([sys.executable, '-m', 'mmkcr', *words], cwd=folder,
                                   stdout=file, stderr=file, env=dict(os.environ, PYTHONPATH=path))
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f'expected `mmkcr {words[0]}` to end, found status '
                           f'{process.returncode}: {log.read_text()[-500:]}')
    return Spent(time.perf_counter() - start, used.ru_utime + used.ru_stime,
                 used.ru_maxrss / 1e6)


def measure(name: str, images: int, target: str) -> tuple[str, ...]:
    """A row of the table."""
    torch.manual_seed(0)
    config = load_config(name)
    dense = build_model(config)
    shape = default_shape(config, dense)
    macs = count_macs(dense, shape)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        torch.save(dict(state_dict=dense.state_dict(), meta={}), folder / 'dense.pth')
        generator = np.random.default_rng(0)
        (folder / 'images').mkdir()
        for number in range(images):
            pixels = generator.integers(0, 256, (*shape[1:], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f'images/{number}.png')
        words = ['compress', name, 'dense.pth', '--target-macs', target, '--calibration',
                 'images', '--images', str(images), '--out', 'slim']
        spent = run(words, folder)
        slim = load_config(folder / 'slim' / CONFIG)
        subnet = build_model(slim)
        load_weights(subnet, folder / 'slim' / SUBNET)
        kept = count_macs(subnet, shape)
        params = count_params(subnet)
    law = law_of(dense, shape)
    return (Path(name).stem, f'{shape[1]} x {shape[2]}',
            f'{count_params(dense) / 1e6:.1f} to {params / 1e6:.1f}',
            f'{macs / 1e9:.4g} to {kept / 1e9:.4g}', f'{kept / macs:.1%}', f'{spent.wall:.0f}',
            f'{spent.cpu:.0f}', f'{spent.peak:.1f}', f'{law:.0e}')


def law_of(model: nn.Module, shape: Sequence[int]) -> float:
    """Relative error of the law on the backbone in fp32; detectors' and segmentors' at 224 px."""
    size = (224, 224) if is_dense_task(model) else (shape[1], shape[2])
    kinds: list[str] = [kind for kind in ('mlp_hidden', 'heads')
                        if not why_not(model.backbone, kind)]
    family = Family('', lambda: copy.deepcopy(model.backbone))
    return law_error(family, kinds, size=size, dtype=torch.float32)[0]


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('configs', nargs='+', help='of dense models')
    parser.add_argument('--images', type=int, default=4, help='for each (%(default)s)')
    parser.add_argument('--target-macs', default='60%', help='of the dense model (%(default)s)')
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run, time and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    for name in args.configs:  # before the first takes its minutes
        load_config(name)
    rows = [measure(name if '::' in name else str(Path(name).resolve()), args.images,
                    args.target_macs) for name in show_progress(args.configs, 'Models')]
    machine = machine_info()
    print(format_table(COLUMNS, rows))
    print(f'{machine["cpu"]}, {machine["cores"]} cores, load {machine["load_average"]}, torch '
          f'{machine["torch"]}, mmkcr {machine["mmkcr"]}; {args.images} images, '
          f'target {args.target_macs}')


if __name__ == '__main__':
    main()
