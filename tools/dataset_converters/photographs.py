"""Pictures that differ, from packages of Debian and npm: to calibrate with, and to judge by.

Fetches the packages (Debian's as root once ``apt-get update`` has run) and writes below ``--out``

- ``train`` and ``held_out``: wallpapers, GCompris' pictures and OpenCV's samples, split by file,
  a quarter of every source held out, with at most 1024 pixels;
- ``train_crops`` and ``held_out_crops`` of 224 pixels; ``FILE@K.jpg`` is a crop of ``FILE.jpg``;
- ``truth``: Tux Paint's stamps on held-out wallpapers, ``NAME.jpg`` and its mask ``NAME.png``;
- ``classes/CLASS``: the stamps on white, by their folders. The stamps are the source that is held
  out whole;
- ``emoji/VENDOR``, with ``--emoji``: the symbols that two vendors draw, without flags, on white;
- ``LICENSES``: what each package says.

Example:
    python tools/dataset_converters/photographs.py --out data/photographs --emoji
"""

import io
import json
import random
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from mmkcr.cli.command import Parser, command

SIZE = 224
#: Crops are at least so large, where the picture is.
LEAST_CROP = 112
#: Of each source, one picture in so many is held out.
HELD_OUT = 4
#: Crops of a wallpaper where one is taken of another picture, which is smaller.
PLACES = 4
#: Least pictures of a class of stamps.
LEAST_OF_CLASS = 6
VENDORS = ('google', 'twitter')
#: Packages by the source that they belong to. Licences are in each package's ``copyright``.
PACKAGES = {
    'wallpapers': ('gnome-backgrounds', 'lomiri-wallpapers-16.04', 'lomiri-wallpapers-20.04',
                   'mate-backgrounds', 'plasma-workspace-wallpapers', 'ukui-wallpapers'),
    'gcompris': ('gcompris-qt-data', ),
    'opencv': ('opencv-doc', ),
    'stamps': ('tuxpaint-stamps-default', ),
    'clipart': ('openclipart-png', )}
SUFFIXES = ('.jpg', '.jpeg', '.png', '.webp')
#: Least pixels of the shorter side of wallpapers, of other pictures and of cut-outs.
LARGE, SMALL, LEAST_CUT = 600, 180, 80
#: Pictures whose thumbnails correlate more are one picture.
ALIKE = 0.95
#: Endings of names of other versions of a wallpaper: light and dark, and sizes.
_VERSIONS = re.compile(r'([-_](l|d)|_\d+x\d+)$')
#: Pieces of GCompris' puzzles; calibration patterns of OpenCV, in two series.
_PIECES, _PATTERNS = re.compile(r'_[a-e]\d$'), re.compile(r'(left|right)\d+$')
#: Folders of stamps that are drawn, not photographed.
_DRAWN = ('cartoon', 'symbols', 'toys')


class Picture(NamedTuple):
    """A picture that can be opened.

    Args:
        name (str): Unique, without a suffix; begins with the source.
        content (bytes | Path): Of the file.
    """

    name: str
    content: bytes | Path

    def open(self, most: int = 1024) -> Image.Image:
        """The picture on white, with at most ``most`` pixels a side. Defaults to 1024."""
        Image.MAX_IMAGE_PIXELS = None  # packages of a distribution are no strangers' files
        source = io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content
        with Image.open(source) as image:
            image.draft('RGB', (most, most))
            image.thumbnail((most, most), Image.Resampling.LANCZOS)
            layers = image.convert('RGBA')
        whole = Image.new('RGBA', layers.size, 'white')
        return Image.alpha_composite(whole, layers).convert('RGB')


def find_wallpapers(folder: Path) -> list[Picture]:
    """One file for each wallpaper of a package, at its largest size and in its light version.

    Pictures smaller than :data:`LARGE` and pictures without contrast, such as transparent
    overlays, are left out.
    """
    best: dict[str, tuple[tuple[bool, int], Path]] = {}
    for path in _image_files(folder):
        if path.stem == 'screenshot':
            continue
        parts = path.relative_to(folder).parts
        name = parts[parts.index('contents') - 1] if 'contents' in parts else \
            _VERSIONS.sub('', path.stem)
        with Image.open(path) as image:
            width, height = image.size
            image.draft('RGB', (64, 64))
            small = np.asarray(image.convert('RGB').resize((32, 32), Image.Resampling.BILINEAR))
        if min(width, height) < LARGE or small.std((0, 1)).mean() < 8:
            continue
        rank = ('dark' not in path.as_posix() and not path.stem.endswith('-d'), width * height)
        if name not in best or rank > best[name][0]:
            best[name] = rank, path
    return [Picture(f'wallpapers_{folder.name}_{name}', path)
            for name, (_, path) in sorted(best.items())]


def find_gcompris(folder: Path) -> list[Picture]:
    """WebP pictures of the resource archives (.rcc) below ``folder``, without puzzles' pieces."""
    pictures = []
    for archive in sorted(folder.rglob('*.rcc')):
        for name, content in read_resources(archive.read_bytes()):
            path = Path(name)
            if path.suffix != '.webp' or _PIECES.search(path.stem):
                continue
            with Image.open(io.BytesIO(content)) as image:
                if min(image.size) >= SMALL:
                    pictures.append(Picture(f'gcompris_{archive.stem}_{path.parent.name}_'
                                            f'{path.stem}', content))
    return pictures


def read_resources(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Paths and contents of the files in an archive of Qt's resource compiler.

    Args:
        content (bytes): Of a .rcc file: a header, and a tree, data and names at offsets that the
            header holds. Files that are compressed are returned as they are.

    Raises:
        ValueError: It is another file.
    """
    if content[:4] != b'qres':
        raise ValueError(f'expected an archive of Qt resources, found a file that begins with '
                         f'{content[:4]!r}')
    version, tree, data, names = struct.unpack_from('>4I', content, 4)
    size = 14 if version == 1 else 22
    waiting = [(0, '')]
    while waiting:
        node, path = waiting.pop()
        at = tree + size * node
        where, flags, first, second = struct.unpack_from('>IHII', content, at)
        if node:
            length, = struct.unpack_from('>H', content, names + where)
            begin = names + where + 6  # behind the length and a hash
            path += '/' + content[begin:begin + 2 * length].decode('utf-16-be')
        if flags & 2:  # a folder: number and place of its children
            waiting += [(child, path) for child in range(second, second + first)]
        else:  # a file: country and language, place of its data
            length, = struct.unpack_from('>I', content, data + second)
            yield path, content[data + second + 4:data + second + 4 + length]


def find_samples(folder: Path) -> list[Picture]:
    """Sample pictures of OpenCV's documentation, without its series of calibration patterns."""
    pictures = []
    for path in _image_files(folder):
        if '/examples/' not in path.as_posix() or _PATTERNS.match(path.stem):
            continue
        with Image.open(path) as image:
            if min(image.size) >= SMALL:
                pictures.append(Picture(f'opencv_{path.parent.name}_{path.stem}', path))
    return pictures


def find_cutouts(folder: Path) -> list[Picture]:
    """Pictures of one object on nothing: stamps and clip art that are not drawn.

    The object covers 15 to 90 % of the rectangle around it. A name begins with the object's class,
    which is its first two folders, and an underscore.
    """
    pictures = []
    for path in _image_files(folder):
        folders = path.parent.relative_to(folder).parts
        if set(folders) & set(_DRAWN) or path.stem.endswith(('_mirror', '_flip')):
            continue
        cut = open_cutout(path)
        if cut is None or min(cut.size) < LEAST_CUT:
            continue
        share = (np.asarray(cut)[..., 3] > 127).mean()
        if 0.15 <= share <= 0.9:
            name = '-'.join(folders[:2]) + '_' + '-'.join((*folders[2:], path.stem))
            pictures.append(Picture(name, path))
    return pictures


def open_cutout(path: Path) -> Image.Image | None:
    """The rectangle around an object with its transparency, RGBA; None where nothing is."""
    with Image.open(path) as image:
        whole = image.convert('RGBA')
    box = whole.getchannel('A').point(lambda level: 255 * (level > 127)).getbbox()
    return whole.crop(box) if box else None


def open_different(pictures: list[Picture]) -> dict[str, Image.Image]:
    """The pictures by name, without pictures whose thumbnail is that of an earlier one."""
    kept: dict[str, Image.Image] = {}
    thumbnails = np.zeros((0, 16 * 16 * 3), np.float32)
    for picture in pictures:
        image = picture.open()
        pixels = np.asarray(image.resize((16, 16), Image.Resampling.BOX), np.float32).ravel()
        pixels -= pixels.mean()
        pixels /= max(float(np.linalg.norm(pixels)), 1e-6)
        if picture.name not in kept and not (thumbnails @ pixels > ALIKE).any():
            kept[picture.name] = image
            thumbnails = np.vstack((thumbnails, pixels))
    return kept


def _image_files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob('*'))
            if path.suffix.lower() in SUFFIXES and not path.is_symlink() and path.is_file()]


def fetch_debian(folder: Path) -> None:
    """Unpack the packages below ``folder``, each in a folder of its own name."""
    for name in (name for names in PACKAGES.values() for name in names):
        for call in (['apt-get', 'download', '-q', name],
                     ['sh', '-c', f'dpkg -x {name}_*.deb {name} && rm {name}_*.deb']):
            _run(call, folder, f'the Debian package `{name}`', 'run `apt-get update`')


def fetch_emoji(folder: Path) -> None:
    """Unpack both vendors' pictures below ``folder``, each in a folder of the vendor's name."""
    for vendor in VENDORS:
        (folder / vendor).mkdir()
        name = f'emoji-datasource-{vendor}'
        _run(['sh', '-c', f'npm pack --silent {name} && tar xzf {name}-*.tgz -C {vendor}'],
             folder, f'the npm package `{name}`', 'install npm')


def _run(call: list[str], folder: Path, wanted: str, advice: str) -> None:
    try:
        subprocess.run(call, cwd=folder, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, 'stderr', None) or str(error)).strip().splitlines()[-1]
        raise RuntimeError(f'expected {wanted}, found none ({said}): {advice}') from error


def random_crop(image: Image.Image, draw: random.Random, size: int = SIZE) -> Image.Image:
    """A square of 8 to 100 % of the largest square's area, anywhere, half of them mirrored.

    Args:
        image (Image): Of any size.
        draw (Random): What the crop is drawn by.
        size (int): Pixels of the crop's side. Defaults to 224.
    """
    most = min(image.size)
    side = max(round(most * draw.uniform(0.08, 1)**0.5), min(LEAST_CROP, most))
    left, top = (draw.randint(0, length - side) for length in image.size)
    crop = image.resize((size, size), Image.Resampling.BICUBIC,
                        (left, top, left + side, top + side))
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else crop


def paste(picture: Image.Image, cut: Image.Image, draw: random.Random
          ) -> tuple[Image.Image, Image.Image]:
    """A picture with an object of 30 to 80 % of its side on it, and the object's mask.

    Args:
        picture (Image): A square.
        cut (Image): The object, RGBA.
        draw (Random): What size and place are drawn by.
    """
    side = picture.size[0] * draw.uniform(0.3, 0.8)
    scale = side / max(cut.size)
    small = cut.resize([max(1, round(length * scale)) for length in cut.size],
                       Image.Resampling.LANCZOS)
    place = tuple(draw.randint(0, picture.size[0] - length) for length in small.size)
    whole, mask = picture.copy(), Image.new('L', picture.size)
    whole.paste(small, place, small)
    mask.paste(small.getchannel('A').point(lambda level: 255 * (level > 127)), place)
    return whole, mask


def split_names(names: Sequence[str], draw: random.Random) -> tuple[list[str], list[str]]:
    """Pictures to train on and pictures held out: one in ``HELD_OUT``, at least one."""
    mixed = draw.sample(names, len(names))
    count = max(1, len(mixed) // HELD_OUT)
    return mixed[count:], mixed[:count]


def write_crops(pictures: dict[str, Image.Image], out: Path, count: int, draw: random.Random,
                cutouts: Sequence[Picture] = (), share: float = 0.) -> None:
    """Write crops of pictures in turns.

    Args:
        pictures (dict[str, Image]): By name.
        out (Path): Folder to write to.
        count (int): Number of crops. Of a wallpaper ``PLACES`` are taken where one is taken of
            another picture.
        draw (Random): What the crops are drawn by.
        cutouts (Sequence[Picture]): Objects to paste. Defaults to ().
        share (float): Share of the crops with an object on it. Defaults to 0.
    """
    out.mkdir(parents=True)
    turns = [name for name in pictures
             for _ in range(PLACES if name.startswith('wallpapers') else 1)]
    turns = draw.sample(turns, len(turns))
    taken: Counter[str] = Counter()
    for index in range(count):
        name = turns[index % len(turns)]
        crop = random_crop(pictures[name], draw)
        if cutouts and draw.random() < share:
            crop, _ = paste(crop, open_cutout(draw.choice(cutouts).content), draw)
        crop.save(out / f'{name}@{taken[name]:03d}.jpg', quality=95)
        taken[name] += 1


def write_truth(stamps: Sequence[Picture], backgrounds: Sequence[Image.Image], out: Path,
                draw: random.Random) -> None:
    """Write every stamp on a crop of a background with its mask, and by class on white.

    Args:
        stamps (Sequence[Picture]): Objects.
        backgrounds (Sequence[Image]): Held-out photographs.
        out (Path): Folder to write ``truth`` and ``classes`` to.
        draw (Random): What crops, sizes and places are drawn by.
    """
    (out / 'truth').mkdir()
    classes = Counter(_class_of(stamp) for stamp in stamps)
    for stamp in stamps:
        cut = open_cutout(stamp.content)
        whole, mask = paste(random_crop(draw.choice(backgrounds), draw), cut, draw)
        whole.save(out / f'truth/{stamp.name}.jpg', quality=95)
        mask.save(out / f'truth/{stamp.name}.png')
        if classes[_class_of(stamp)] >= LEAST_OF_CLASS:
            folder = out / 'classes' / _class_of(stamp)
            folder.mkdir(parents=True, exist_ok=True)
            _on_white(cut).save(folder / f'{stamp.name}.jpg', quality=95)


def _class_of(stamp: Picture) -> str:
    return stamp.name.partition('_')[0]


def _on_white(cut: Image.Image) -> Image.Image:
    """An object in the middle of a white square."""
    side = round(max(cut.size) * 1.1)
    whole = Image.new('RGB', (side, side), 'white')
    whole.paste(cut, tuple((side - length) // 2 for length in cut.size), cut)
    return whole.resize((SIZE, SIZE), Image.Resampling.BICUBIC)


def write_emoji(source: Path, out: Path) -> int:
    """Write the symbols that both vendors have, without flags, and return how many there are."""
    data = json.loads((source / VENDORS[0] / 'package/emoji.json').read_text())
    names = [one['image'] for one in data
             if one['category'] != 'Flags' and all(one[f'has_img_{name}'] for name in VENDORS)]
    for vendor in VENDORS:
        (out / vendor).mkdir(parents=True)
        for name in names:
            picture = Picture(name, source / vendor / 'package/img' / vendor / '64' / name)
            picture.open().save(out / vendor / name)
    return len(names)


def write(source: Path, out: Path, crops: Sequence[int], seed: int = 0, share: float = 0.
          ) -> dict[str, int]:
    """Write pictures, crops, truth and licences.

    Args:
        source (Path): Unpacked packages, each in a folder of its own name.
        out (Path): Folder to write to.
        crops (Sequence[int]): Number of crops for training and held out.
        seed (int): Of the split and the crops. Defaults to 0.
        share (float): Share of the crops for training with a clip art on it. Defaults to 0.

    Returns:
        dict[str, int]: Pictures to train on, held out, and stamps.

    Raises:
        ValueError: A source has no pictures.
        FileExistsError: There are such folders at ``out``.
    """
    if (out / 'train').exists():
        raise FileExistsError(f'expected a new folder to write pictures to, found `{out}/train`')
    draw = random.Random(seed)
    sides: dict[str, dict[str, Image.Image]] = dict(train={}, held_out={})
    finders = {'wallpapers': find_wallpapers, 'gcompris': find_gcompris, 'opencv': find_samples}
    for name, find in finders.items():
        found = open_different([one for package in PACKAGES[name]
                                for one in find(source / package)])
        if len(found) < 2:
            raise ValueError(f'expected unpacked packages with pictures of `{name}` at '
                             f'`{source}`, found {len(found)} of them')
        for side, names in zip(sides.values(), split_names(list(found), draw)):
            side.update({name: found[name] for name in names})
    for side, pictures in sides.items():
        (out / side).mkdir(parents=True)
        for name, image in pictures.items():
            image.save(out / side / f'{name}.jpg', quality=92)
    objects = {name: [one for package in PACKAGES[name]
                      for one in find_cutouts(_root_of(source / package))]
               for name in ('stamps', 'clipart') if name == 'stamps' or share}
    write_crops(sides['train'], out / 'train_crops', crops[0], draw, objects.get('clipart', ()),
                share)
    write_crops(sides['held_out'], out / 'held_out_crops', crops[1], draw)
    stamps = draw.sample(objects['stamps'], len(objects['stamps']))
    backgrounds = [image for name, image in sides['held_out'].items()
                   if name.startswith('wallpapers')]
    write_truth(stamps, backgrounds, out, draw)
    (out / 'LICENSES').mkdir()
    for path in source.glob('*/usr/share/doc/*/copyright'):
        shutil.copy(path, out / 'LICENSES' / path.parent.name)
    return {**{side: len(pictures) for side, pictures in sides.items()}, 'stamps': len(stamps)}


def _root_of(package: Path) -> Path:
    """The folder of a package of cut-outs below which folders are classes."""
    return next((package / 'usr/share' / name for name in ('tuxpaint/stamps', 'openclipart/png')
                 if (package / 'usr/share' / name).is_dir()), package)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Fetch and write."""
    parser = Parser(__doc__)
    parser.add_argument('--out', default='data/photographs',
                        help='folder to write to (%(default)s)')
    parser.add_argument('--packages', help='folder of unpacked packages of Debian, instead of '
                        'fetching them')
    parser.add_argument('--crops', type=int, nargs=2, default=(700, 300), metavar='N',
                        help='crops of the pictures to train on and of those held out (700 300)')
    parser.add_argument('--paste', type=float, default=0., metavar='SHARE',
                        help='share of the crops to train on with a clip art on it (%(default)s)')
    parser.add_argument('--emoji', action='store_true', help='fetch emoji, too, through npm')
    parser.add_argument('--seed', type=int, default=0,
                        help='of the split and the crops (%(default)s)')
    args = parser.parse_args(argv)
    out = Path(args.out)
    with tempfile.TemporaryDirectory() as folder:
        if not args.packages:
            fetch_debian(Path(folder))
        counts = write(Path(args.packages or folder), out, args.crops, args.seed, args.paste)
        if args.emoji:
            fetch_emoji(Path(folder))
            counts['symbols'] = write_emoji(Path(folder), out / 'emoji')
    told = ', '.join(f'{count} {name.replace("_", " ")}' for name, count in counts.items())
    print(f'{told}: {out}')


if __name__ == '__main__':
    main()
