"""Digit scenes: several handwritten digits on a dark canvas, for the dense tasks.

Every scene is annotated twice, from the same masks:

- COCO json: boxes, masks as uncompressed run lengths (exact, unlike polygons), areas,
  ``iscrowd`` 0, categories 1 to 10 named '0' to '9';
- an index mask as in ADE20K: 0 for the background, 1 to 10 for the digits '0' to '9'. With
  ``reduce_zero_label=True`` these are 10 classes and the background is ignored; with ``False``
  the background is class 0 of 11.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .digit_sources import SOURCE_SIZE, render, repeat_pixels

INK = 4  # a source pixel of at least 4 of 16 belongs to the digit
MAX_DIGITS = 5
PLACING_ATTEMPTS = 50


@dataclass
class Scene:
    """One scene and its annotation.

    Args:
        image (np.ndarray): Grey image (H, W), uint8.
        instances (list[tuple[int, np.ndarray]]): Label from 0 to 9 and mask (H, W), bool, of
            every digit; the masks are disjoint.
    """

    image: np.ndarray
    instances: list[tuple[int, np.ndarray]]

    def index_mask(self) -> np.ndarray:
        """Draw the semantic annotation (H, W), uint8: 0 background, 1 to 10 the digits."""
        index = np.zeros(self.image.shape, np.uint8)
        for label, mask in self.instances:
            index[mask] = label + 1
        return index


def write_scenes(folder: Path, part: str, count: int, canvas: int, images: np.ndarray,
                 labels: np.ndarray, rng: np.random.Generator) -> None:
    """Write images, index masks and COCO json of one part.

    Args:
        folder (Path): The folder of the scenes.
        part (str): 'training' or 'validation'.
        count (int): Number of scenes.
        canvas (int): Height and width of a scene in pixels.
        images (np.ndarray): Source digits (n, 8, 8) of this part.
        labels (np.ndarray): Their labels (n,).
        rng (np.random.Generator): Source of every random choice.
    """
    image_folder, mask_folder = folder / 'images' / part, folder / 'annotations' / part
    image_folder.mkdir(parents=True)
    mask_folder.mkdir(parents=True)
    stream = endless(images, labels, rng)
    scenes = {}
    for number in range(1, count + 1):
        name = f'{number:06d}.png'
        scenes[name] = compose_scene(stream, canvas, rng)
        Image.fromarray(scenes[name].image).save(image_folder / name)
        Image.fromarray(scenes[name].index_mask()).save(mask_folder / name)
    text = json.dumps(coco_json(scenes), separators=(',', ':'))
    (folder / 'annotations' / f'instances_{part}.json').write_text(text)


def compose_scene(stream: Iterator[tuple[np.ndarray, int]], canvas: int,
                  rng: np.random.Generator, step: int = 1, size: int | None = None) -> Scene:
    """Place 2 to 5 digits without overlap; a digit that finds no place is left out.

    Args:
        stream (Iterator): Source digits (8, 8) and their labels.
        canvas (int): Height and width of the scene in pixels; a digit's side is 3/16 to 6/16
            of it, rounded down to a multiple of 8.
        rng (np.random.Generator): Source of number, sizes and positions.
        step (int): Positions are multiples of it, in pixels. Defaults to 1.
        size (int, optional): Side of every digit. Defaults to None: drawn.

    Returns:
        Scene: A scene with at least one digit.
    """
    scene = Scene(np.zeros((canvas, canvas), np.uint8), [])
    taken = np.zeros((canvas, canvas), bool)
    for _ in range(rng.integers(2, MAX_DIGITS + 1)):
        source, label = next(stream)
        side = size or SOURCE_SIZE * int(rng.integers(3 * canvas // 128, 6 * canvas // 128 + 1))
        place = _find_place(taken, side, rng, step)
        if place is not None:
            taken[place] = True
            scene.image[place] = render(source, side)
            mask = np.zeros_like(taken)
            mask[place] = repeat_pixels(source >= INK, side)
            scene.instances.append((int(label), mask))
    return scene


def coco_json(scenes: dict[str, Scene]) -> dict[str, Any]:
    """Describe scenes in COCO's format.

    Args:
        scenes (dict[str, Scene]): File name to scene; image ids count from 1 in this order.

    Returns:
        dict[str, Any]: ``images``, ``annotations`` and ``categories``.
    """
    images, annotations = [], []
    for image_id, (name, scene) in enumerate(scenes.items(), 1):
        height, width = scene.image.shape
        images.append(dict(id=image_id, file_name=name, height=height, width=width))
        for label, mask in scene.instances:
            annotations.append(dict(id=len(annotations) + 1, image_id=image_id, iscrowd=0,
                                    category_id=label + 1, **_describe_mask(mask)))
    categories = [dict(id=digit + 1, name=str(digit)) for digit in range(10)]
    return dict(info=dict(description='digit scenes of mmkcr'), images=images,
                annotations=annotations, categories=categories)


def _describe_mask(mask: np.ndarray) -> dict[str, Any]:
    """Box (x, y, w, h), area and run lengths, column by column from a run of zeros."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    x, y = int(columns[0]), int(rows[0])
    flat = np.concatenate([[False], mask.ravel(order='F')])
    edges = np.concatenate([[0], np.flatnonzero(flat[1:] != flat[:-1]), [mask.size]])
    return dict(bbox=[x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1],
                area=int(mask.sum()),
                segmentation=dict(size=list(mask.shape), counts=np.diff(edges).tolist()))


def _find_place(taken: np.ndarray, side: int, rng: np.random.Generator,
                step: int) -> tuple[slice, slice] | None:
    """Draw a free square of ``side`` pixels, or None after some attempts."""
    for _ in range(PLACING_ATTEMPTS):
        top, left = step * rng.integers(0, (len(taken) - side) // step + 1, 2)
        place = slice(top, top + side), slice(left, left + side)
        if not taken[place].any():
            return place
    return None


def endless(images: np.ndarray, labels: np.ndarray,
            rng: np.random.Generator) -> Iterator[tuple[np.ndarray, int]]:
    """Yield all the digits in one random order after another.

    Args:
        images (np.ndarray): (n, 8, 8).
        labels (np.ndarray): (n,).
        rng (np.random.Generator): Of the orders.
    """
    while True:
        for index in rng.permutation(len(labels)):
            yield images[index], int(labels[index])
