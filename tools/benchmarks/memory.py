"""Peak memory and time of `compress` on networks at full size, on photographs.

Weights are random, as they do not matter here. Each network is compressed in a process of its own,
whose peak beyond the loaded network is measured. Photographs are crops of those that come with
scikit-image and scikit-learn.

Example:
    python tools/benchmarks/memory.py --out docs/results/memory.csv
"""

import csv
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.machine import machine_info, process_memory
from mmkcr.apis.compress_files import task_outputs
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.closed_form.compression import compress
from mmkcr.closed_form.images import calibration_images
from mmkcr.engine.build import build_model, default_shape, load_config
from mmkcr.models.tasks import is_dense_task
from mmkcr.visualization import format_table, show_progress

#: By name: config, and height and width of its photographs.
NETWORKS = {
    'SegFormer-B0': ('mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', (512, 512)),
    'UPerNet, Swin-T': ('mmseg::swin/swin-tiny-patch4-window7-in1k-pre_upernet_8xb2-160k_'
                        'ade20k-512x512.py', (512, 512)),
    'Mask R-CNN, Swin-T': ('mmdet::swin/mask-rcnn_swin-t-p4-w7_fpn_1x_coco.py', (800, 1333)),
    'DINOv2-S': ('mmpretrain::dinov2/vit-small-p14_dinov2-pre_headless.py', (518, 518))}
COLUMNS = ('study', 'network', 'task', 'method', 'control', 'metric', 'budget', 'seed', 'before',
           'after', 'macs', 'params', 'time_ratio', 'runtime', 'machine', 'versions', 'commit',
           'command', 'source', 'note')


def photographs(folder: Path, count: int, size: tuple[int, int]) -> None:
    """Write different crops of photographs, each of a quarter to half of one."""
    from skimage import data
    from sklearn.datasets import load_sample_images
    whole = [*load_sample_images().images, data.astronaut(), data.coffee(), data.chelsea()]
    generator = np.random.default_rng(0)
    for number in range(count):
        pixels = whole[number % len(whole)]
        share = generator.uniform(0.5, 0.7)
        height = min(pixels.shape[0], pixels.shape[1] * size[0] / size[1]) * share
        box = np.array([height * size[1] / size[0], height])
        corner = generator.uniform(0, 1, 2) * (np.array(pixels.shape[1::-1]) - box)
        Image.fromarray(pixels).resize(size[::-1], box=(*corner, *(corner + box))).save(
            folder / f'{number:02}.png')


def run(name: str, count: int, memory: float, target: str) -> dict[str, Any]:
    """Compress a network in this process; GB beyond the loaded network, and seconds."""
    torch.manual_seed(0)
    path, size = NETWORKS[name]
    config = load_config(path)
    if config.get('test_dataloader') is None:
        config.test_dataloader = dict(dataset=dict(pipeline=[
            dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
    model = build_model(config)
    with tempfile.TemporaryDirectory() as folder:
        photographs(Path(folder), count, size)
        batches = calibration_images(config, model, folder, count)
        before, start = process_memory()[0], time.perf_counter()
        result = compress(model, batches, target, None, default_shape(config, model),
                          'backbone' if is_dense_task(model) else None, task_outputs,
                          memory=int(memory * 2**30))
        seconds = time.perf_counter() - start
    structure = result.structure
    return dict(peak=(process_memory()[1] - before) / 2**30, seconds=seconds,
                macs=structure.macs, params=structure.params)


def row(name: str, words: Sequence[str], found: dict[str, Any], args: Any) -> dict[str, str]:
    """A row of the results."""
    machine = machine_info()
    height, width = NETWORKS[name][1]
    commit = subprocess.run(['git', 'rev-parse', '--short', 'HEAD'], capture_output=True, text=True,
                            check=False).stdout.strip()
    scale = found['macs']['dense'] / 1e9, found['macs']['subnet'] / 1e9
    return dict(
        study='memory', network=f'{name}, {height} x {width}', method='closed form',
        metric='peak memory (GB)', budget=args.target, seed='0', before=f'{args.memory:g}',
        after=f'{found["peak"]:.1f}', macs='{:.1f} G to {:.1f} G'.format(*scale),
        params='{dense} to {subnet}'.format(**found['params']), runtime=f'{found["seconds"]:.0f} s',
        machine=f'{machine["cpu"]}, {machine["cores"]} cores, {machine["threads"]} threads, load '
        f'{machine["load_average"]}',
        versions=f'torch {machine["torch"]}', commit=commit,
        command=shlex.join(words), source='ours',
        note=f'{args.images} photographs, random weights; before: the limit, after: the peak '
        'beyond the loaded network')


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(__doc__)
    parser.add_argument('--networks', nargs='+', choices=list(NETWORKS), default=list(NETWORKS),
                        help='(all)')
    parser.add_argument('--images', type=int, default=24, help='photographs (%(default)s)')
    parser.add_argument('--memory', type=float, default=6., help='limit in GB (%(default)g)')
    parser.add_argument('--target', default='60%', help='of the MACs (%(default)s)')
    parser.add_argument('--out', metavar='FILE', help='file that gets the rows (none)')
    parser.add_argument('--here', action='store_true', help='one network, in this process')
    return parser


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    args = make_parser().parse_args(argv)
    quiet_hosts()
    if args.here:
        print(json.dumps(run(args.networks[0], args.images, args.memory, args.target)))
        return
    rows = []
    for name in show_progress(args.networks, 'Networks'):
        words = ['tools/benchmarks/memory.py', '--networks', name, '--images', str(args.images),
                 '--memory', f'{args.memory:g}', '--target', args.target]
        done = subprocess.run([sys.executable, str(Path(__file__).resolve()), *words[1:], '--here'],
                              stdout=subprocess.PIPE, text=True, check=True)
        rows.append(row(name, ['python', *words], json.loads(done.stdout.splitlines()[-1]), args))
        if args.out:
            with open(args.out, 'w', newline='') as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator='\n')
                writer.writeheader()
                writer.writerows(rows)
    print(format_table(('network', 'limit (GB)', 'peak (GB)', 'time', 'MACs'), [
        [row[key] for key in ('network', 'before', 'after', 'runtime', 'macs')] for row in rows]))


if __name__ == '__main__':
    main()
