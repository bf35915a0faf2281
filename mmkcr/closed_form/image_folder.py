"""Images below a folder, found and read without a data set."""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from mmkcr.core.checks import one_line
from mmkcr.hosts import UnreadableImageError
from .batches import ImageBatches, batch_digest

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')


class FolderImages(ImageBatches):
    """Batches (B, 3, H, W) of image files, read on demand as a network reads images.

    Args:
        paths (Sequence[Path]): The files.
        transform (Callable): Makes a tensor (3, H, W) of an image of Pillow.
    """

    def __init__(self, paths: Sequence[Path],
                 transform: Callable[[Image.Image], Tensor]) -> None:
        self._transform = transform
        wide, tall = (transform(Image.new('RGB', sides)) for sides in ((64, 32), (32, 64)))
        self._of_one_size = wide.shape == tall.shape
        super().__init__(paths)

    def sources(self) -> list[str]:
        """The file of each image, or the picture that it is a crop of, see :func:`origin_of`."""
        return [origin_of(path) for path in self._images]

    def digest(self) -> str:
        """SHA-256 that differs for other images or other transforms, see :func:`digest_files`."""
        return digest_files(self._images, [self[0], self[-1]] if len(self) else [])

    def _kind(self, image: Path) -> Any:
        return None if self._of_one_size else image

    def _batch(self, images: list[Path]) -> Tensor:
        return torch.stack([self._read(path) for path in images])

    def _read(self, path: Path) -> Tensor:
        try:
            with Image.open(path) as image:
                return self._transform(image.convert('RGB'))
        except Exception as error:  # of the file system, Pillow and the transform
            raise UnreadableImageError(f'expected an image that can be read at `{path}`, found '
                                       f'none ({one_line(error, 160)})') from error


def digest_files(files: Iterable[Path | None], batches: Iterable[Any]) -> str:
    """SHA-256 of the bytes of files, and of the pixels of the batches that transforms change.

    Reading takes a fraction of the time of decoding, so a few batches are enough.

    Args:
        files (Iterable[Path | None]): Files of the images; others than local files are left out.
        batches (Iterable): The first and the last batch.
    """
    sha = hashlib.sha256()
    for path in files:
        if path is not None and path.is_file():
            sha.update(hashlib.sha256(path.read_bytes()).digest())
    for batch in batches:
        sha.update(batch_digest(batch))
    return sha.hexdigest()


def origin_of(path: Path) -> str:
    """The file, or the origin of a crop: ``cat@1.jpg`` and ``cat@2.jpg`` are of one picture."""
    return str(path.with_name(path.stem.partition('@')[0]))


def draw_images(count: int, most: int, seed: int) -> list[int]:
    """Draw places at random.

    Args:
        count (int): Number of images.
        most (int): Number of places at most.
        seed (int): Seed of the draw.
    """
    draw = torch.Generator().manual_seed(seed)
    return torch.randperm(count, generator=draw)[:most].tolist()


def list_images(folder: str | Path) -> list[Path]:
    """The images below a folder, see :func:`find_images`; what is left out is printed.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: It is a file, or has no images.
    """
    if Path(folder).is_file():
        raise ValueError(f'expected a folder of calibration images, found the single file '
                         f'`{folder}`: give the folder that it is in, or one with more images')
    if not Path(folder).is_dir():
        raise FileNotFoundError(f'expected a folder of calibration images at `{folder}`, found '
                                'none')
    paths, left_out = find_images(folder)
    others = ', '.join(f'{count} {why}' for why, count in left_out.items())
    reasons = f' (left out: {others})' if others else ''
    if not paths:
        raise ValueError(f'expected calibration images ({", ".join(SUFFIXES)}) below '
                         f'`{folder}`, found none{reasons}')
    if reasons:
        print(f'Images of `{folder}`: {len(paths)}{reasons}.', file=sys.stderr)
    return paths


def find_images(folder: str | Path) -> tuple[list[Path], dict[str, int]]:
    """Find the images below a folder, through links, and count the files that are left out.

    Args:
        folder (str | Path): It is searched at any depth. Hidden files and folders are left out,
            and so are files that a link shows for a second time.

    Returns:
        tuple[list[Path], dict[str, int]]: The images in order, and by the reason the number of
            files that are left out.
    """
    images: list[Path] = []
    left_out: Counter[str] = Counter()
    seen: set[str] = set()
    waiting, links = [(str(folder), os.path.realpath(folder))], []
    while waiting or links:  # files under their own names, then files that links show
        if not waiting:
            link = links.pop()
            waiting.append((link, os.path.realpath(link)))
        path, real = waiting.pop()
        if real in seen:
            left_out['linked twice'] += 1
        elif os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK):
            left_out['folders that cannot be read'] += 1
        elif os.path.isdir(path):
            for entry in os.scandir(path):
                if entry.name.startswith('.'):
                    left_out['hidden'] += _count_files(entry.path)
                elif entry.is_symlink():
                    links.append(entry.path)
                else:
                    waiting.append((entry.path, os.path.join(real, entry.name)))
        elif not os.path.isfile(path):  # a pipe, which waits, or a link to nothing
            left_out['no files'] += 1
        elif os.path.splitext(path)[1].lower() in SUFFIXES:
            images.append(Path(path))
        else:
            left_out['of other kinds'] += 1
        seen.add(real)
    return sorted(images), dict(left_out)


def _count_files(path: str) -> int:
    """Number of files at or below a path."""
    return sum(len(files) for *_, files in os.walk(path)) if os.path.isdir(path) else 1
