"""Digits and digit scenes: real pixels for every task, without a download.

Written to one folder, in the formats that the host libraries read::

    data/digits
    ├── train/<0..9>/<source>.png      classification, for ImageNet or CustomDataset
    ├── val/<0..9>/<source>.png
    ├── scenes/                        digit scenes, see lab.digit_scenes
    │   ├── images/{training,validation}/<scene>.png
    │   ├── annotations/{training,validation}/<scene>.png
    │   └── annotations/instances_{training,validation}.json
    └── digits.json                    the options and a digest of all the files

``<source>`` is the digit's index in ``sklearn.datasets.load_digits``. No source digit is in
both the training and the validation part, of the digits or of the scenes.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from .digit_scenes import write_scenes
from .digit_sources import SOURCE_SIZE, render, source_digits, split_sources
from .folders import rebuild_folder

STAMP = 'digits.json'
FILES = (r'(train|val)/\d/\d{4}\.png'
         r'|scenes/(images|annotations)/(training|validation)/\d{6}\.png'
         r'|scenes/annotations/instances_(training|validation)\.json')


@dataclass(frozen=True)
class DigitsOptions:
    """What is written.

    Args:
        size (int): Height and width of a classification image in pixels, a multiple of 8.
            Defaults to 32.
        canvas (int): Height and width of a scene in pixels, 64 or more. Defaults to 128.
        train_scenes (int): Number of training scenes. Defaults to 400.
        val_scenes (int): Number of validation scenes. Defaults to 100.
        val_ratio (float): Share of the source digits that is held out. Defaults to 0.2.
        seed (int): Seed of the split and of the scenes. Defaults to 0.

    Raises:
        ValueError: An option is out of its range.
    """

    size: int = 32
    canvas: int = 128
    train_scenes: int = 400
    val_scenes: int = 100
    val_ratio: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size < SOURCE_SIZE or self.size % SOURCE_SIZE:
            raise ValueError('expected `size` of the digits to be a positive multiple of '
                             f'{SOURCE_SIZE}, found `{self.size}`')
        for name, smallest in dict(canvas=64, train_scenes=1, val_scenes=1, seed=0).items():
            if getattr(self, name) < smallest:
                raise ValueError(f'expected `{name}` of the digits to be at least {smallest}, '
                                 f'found `{getattr(self, name)}`')
        if not 0.01 <= self.val_ratio <= 0.99:
            raise ValueError('expected `val_ratio` of the digits to be within 0.01 and 0.99, '
                             f'found `{self.val_ratio}`')


def write_digits(out: str | Path, options: DigitsOptions = DigitsOptions()) -> bool:  # noqa: B008
    """Write all the data sets, unless they are there already.

    A folder of other options, or one with missing or altered files, is replaced as a whole.

    Args:
        out (str | Path): The folder to write.
        options (DigitsOptions): What to write. Defaults to ``DigitsOptions()``.

    Returns:
        bool: Whether anything was written.

    Raises:
        FileExistsError: ``out`` holds something that is not of these data sets.
    """
    return rebuild_folder(
        Path(out), lambda folder: _write_all(folder, options), FILES, STAMP, asdict(options))


def _write_all(folder: Path, options: DigitsOptions) -> None:
    images, labels = source_digits()
    splits = split_sources(options.val_ratio, options.seed)
    for split, sources in splits.items():
        for index in sources:
            path = folder / split / str(labels[index]) / f'{index:04d}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(render(images[index], options.size)).save(path)
    parts = (('training', splits['train'], options.train_scenes),
             ('validation', splits['val'], options.val_scenes))
    for number, (part, sources, count) in enumerate(parts):
        rng = np.random.default_rng([options.seed, number])
        write_scenes(folder / 'scenes', part, count, options.canvas, images[sources],
                     labels[sources], rng)
