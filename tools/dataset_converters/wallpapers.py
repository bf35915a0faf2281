"""Photographs of Debian's wallpaper packages, a third of them held out, and crops of both.

Fetches the packages (as root once ``apt-get update`` has run), takes every picture once, at its
largest size and in its light version, without drawings that are flat, and writes ``train`` and
``held_out`` with at most 1024 pixels, and crops of 224 pixels, of 8 to 100 % of the area, half of
them mirrored. Crops of one photograph are on one side. ``LICENSES`` holds what each package says.

Example:
    python tools/dataset_converters/wallpapers.py --out data/wallpapers
"""

import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from mmkcr.cli.command import Parser, command

PACKAGES = ('gnome-backgrounds', 'lomiri-wallpapers-16.04', 'lomiri-wallpapers-20.04',
            'mate-backgrounds', 'plasma-workspace-wallpapers', 'ukui-wallpapers')
SUFFIXES = ('.jpg', '.jpeg', '.png', '.webp')
#: Endings of names of other versions of a picture: light and dark, and sizes.
_VERSIONS = re.compile(r'([-_](l|d)|_\d+x\d+)$')


def fetch(folder: Path) -> None:
    """Unpack the packages below ``folder``, each in a folder of its own name."""
    for name in PACKAGES:
        for call in (['apt-get', 'download', '-q', name],
                     ['sh', '-c', f'dpkg -x {name}_*.deb {name} && rm {name}_*.deb']):
            try:
                subprocess.run(call, cwd=folder, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                said = getattr(error, 'stderr', None) or str(error)
                raise RuntimeError(f'expected the Debian package `{name}`, found none '
                                   f'({said.strip().splitlines()[-1]}): run `apt-get update`'
                                   ) from error


def photographs(folder: Path) -> list[Path]:
    """One file for each picture below ``folder``, sorted.

    Pictures smaller than 600 pixels and those without contrast, such as transparent overlays, are
    left out.
    """
    Image.MAX_IMAGE_PIXELS = None  # these are no strangers' files
    best: dict[tuple[str, str], tuple[tuple[bool, int], Path]] = {}
    for path in sorted(folder.rglob('*')):
        if path.suffix.lower() not in SUFFIXES or path.is_symlink() or path.stem == 'screenshot':
            continue
        parts = path.relative_to(folder).parts
        name = parts[parts.index('contents') - 1] if 'contents' in parts else \
            _VERSIONS.sub('', path.stem)
        with Image.open(path) as image:
            width, height = image.size
            image.draft('RGB', (64, 64))
            small = np.asarray(image.convert('RGB').resize((32, 32), Image.Resampling.BILINEAR))
        if min(width, height) < 600 or small.std((0, 1)).mean() < 8:
            continue
        rank = ('dark' not in path.as_posix() and not path.stem.endswith('-d'), width * height)
        if (parts[0], name) not in best or rank > best[parts[0], name][0]:
            best[parts[0], name] = rank, path
    return [path for _, path in sorted(best.values(), key=lambda one: one[1])]


def random_crop(image: Image.Image, draw: random.Random, size: int = 224) -> Image.Image:
    """A square of 8 to 100 % of the largest square's area, anywhere, at ``size`` pixels."""
    side = round(min(image.size) * draw.uniform(0.08, 1)**0.5)
    left, top = (draw.randint(0, length - side) for length in image.size)
    crop = image.resize((size, size), Image.Resampling.BICUBIC,
                        (left, top, left + side, top + side))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else crop


def recoloured(image: Image.Image, draw: random.Random) -> Image.Image:
    """With another brightness, contrast and saturation, by up to two fifths, and another hue."""
    for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = kind(image).enhance(draw.uniform(0.6, 1.4))
    hue, saturation, value = image.convert('HSV').split()
    shift = draw.randint(-25, 25)  # of 256
    hue = hue.point([(level + shift) % 256 for level in range(256)])
    return Image.merge('HSV', (hue, saturation, value)).convert('RGB')


def augmented_crop(images: Sequence[Image.Image], index: int, draw: random.Random) -> Image.Image:
    """A crop of a photograph, recoloured, and in half of all cases mixed with one of another."""
    crop = recoloured(random_crop(images[index % len(images)], draw), draw)
    if draw.random() < 0.5:
        other = recoloured(random_crop(draw.choice(images), draw), draw)
        crop = Image.blend(crop, other, draw.uniform(0.1, 0.5))
    return crop


def write(source: Path, out: Path, crops: Sequence[int], seed: int = 0,
          augment: bool = False) -> dict[str, int]:
    """Write photographs, crops and licences.

    Args:
        source (Path): Unpacked packages.
        out (Path): Folder to write to.
        crops (Sequence[int]): Number of crops for training and held out.
        seed (int): Of the split and the crops. Defaults to 0.
        augment (bool): Recolour and mix the crops for training. Defaults to False.

    Returns:
        dict[str, int]: Photographs on each side.

    Raises:
        ValueError: There are less than three.
    """
    draw = random.Random(seed)
    found = photographs(source)
    if len(found) < 3:
        raise ValueError(f'expected unpacked packages with at least three pictures at `{source}`, '
                         f'found {len(found)}')
    draw.shuffle(found)
    count = len(found) // 3
    sides = dict(held_out=found[:count], train=found[count:])
    for (side, paths), number in zip(sides.items(), reversed(crops)):
        (out / side).mkdir(parents=True, exist_ok=True)
        (out / f'{side}_crops').mkdir(exist_ok=True)
        images = []
        for path in paths:
            with Image.open(path) as image:
                whole = image.convert('RGB')
            whole.thumbnail((1024, 1024), Image.Resampling.LANCZOS)
            package = path.relative_to(source).parts[0]
            name = path.parts[path.parts.index('contents') - 1] if 'contents' in path.parts \
                else path.stem
            whole.save(out / side / f'{package}_{name}.jpg', quality=92)
            images.append(whole)
        for index in range(number):
            crop = augmented_crop(images, index, draw) if augment and side == 'train' else \
                random_crop(images[index % len(images)], draw)
            crop.save(out / f'{side}_crops' / f'{index:05d}.jpg', quality=95)
    (out / 'LICENSES').mkdir(exist_ok=True)
    for path in source.glob('*/usr/share/doc/*/copyright'):
        shutil.copy(path, out / 'LICENSES' / path.parent.name)
    return {side: len(paths) for side, paths in sides.items()}


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Fetch and write."""
    parser = Parser(__doc__)
    parser.add_argument('--out', default='data/wallpapers', help='folder to write to (%(default)s)')
    parser.add_argument('--packages', help='folder of unpacked packages, instead of fetching them')
    parser.add_argument('--crops', type=int, nargs=2, default=(512, 192), metavar='N',
                        help='crops of the photographs to train on and of those held out (512 192)')
    parser.add_argument('--augment', action='store_true',
                        help='crops to train on are recoloured, and half of them mixed')
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        if not args.packages:
            fetch(Path(folder))
        counts = write(Path(args.packages or folder), Path(args.out), args.crops,
                       augment=args.augment)
    print(f'{counts["train"]} photographs to train on and {counts["held_out"]} held out, '
          f'{args.crops[0]} and {args.crops[1]} crops: {args.out}')


if __name__ == '__main__':
    main()
