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

import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.picture_sources import (
    PACKAGES,
    Picture,
    find_cutouts,
    find_gcompris,
    find_samples,
    find_wallpapers,
    open_cutout,
    open_different,
)
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
_FIND = {'wallpapers': find_wallpapers, 'gcompris': find_gcompris, 'opencv': find_samples}


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
    for name, find in _FIND.items():
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
