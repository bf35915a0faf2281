"""Pictures in packages of Debian: wallpapers, GCompris, OpenCV's samples, and cut-outs."""

import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

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
