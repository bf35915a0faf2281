"""The 1797 handwritten digits of scikit-learn, their split and their rendering."""

from functools import lru_cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SOURCE_SIZE = 8  # pixels a side
SOURCE_LEVELS = 16  # the brightest grey level


@lru_cache(maxsize=1)
def source_digits() -> tuple[np.ndarray, np.ndarray]:
    """Load the source digits.

    Returns:
        tuple[np.ndarray, np.ndarray]: Images (1797, 8, 8), uint8 from 0 to 16, no two of them
        equal, and labels (1797,), int.
    """
    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target


def split_sources(val_ratio: float = 0.2, seed: int = 0) -> dict[str, np.ndarray]:
    """Split the source digits, stratified by class.

    Args:
        val_ratio (float): Share that is held out. Defaults to 0.2.
        seed (int): Seed of the draw. Defaults to 0.

    Returns:
        dict[str, np.ndarray]: Ascending source indices of ``train`` and ``val``, disjoint.
    """
    labels = source_digits()[1]
    train, val = train_test_split(np.arange(len(labels)), random_state=seed, stratify=labels,
                                  test_size=val_ratio)
    return {'train': np.sort(train), 'val': np.sort(val)}


def repeat_pixels(source: np.ndarray, size: int) -> np.ndarray:
    """Enlarge an (8, 8) array to (size, size) by repetition, ``size`` a multiple of 8."""
    times = size // SOURCE_SIZE
    return source.repeat(times, axis=0).repeat(times, axis=1)


def render(source: np.ndarray, size: int) -> np.ndarray:
    """Render a source digit as a grey image.

    Pixels are repeated, not interpolated: a patch that covers 2 x 2 source pixels sees exactly
    these, and the source can be read back from the image.

    Args:
        source (np.ndarray): (8, 8), uint8 from 0 to 16.
        size (int): Height and width of the result in pixels, a multiple of 8.

    Returns:
        np.ndarray: (size, size), uint8 from 0 to 255.
    """
    grey = np.round(source * (255 / SOURCE_LEVELS)).astype(np.uint8)
    return repeat_pixels(grey, size)
