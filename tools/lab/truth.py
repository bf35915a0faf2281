"""What a compressed network loses by truth: masks, symbols and classes that are known.

A score of a picture is compared with the dense network's score of the same picture, so that the
interval of a difference is that of pairs.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .saliency import normalised

#: Takes images (N, 3, S, S), gives all tokens (N, 1 + P, C) behind the last norm.
Embed = Callable[[Tensor], Tensor]
#: Pictures that the threshold of the maps is chosen on; they are not judged.
CHOSEN_ON = 80
#: Levels that saliency is ranked by for the area under the curve.
LEVELS = 1000
MASK, AREA = 'IoU with the true mask', 'area under the curve'
SYMBOL, CLASS = 'same symbol found', 'nearest picture of the same class'
AGREEMENT = 'IoU with the dense map'


class Truth(NamedTuple):
    """Pictures with what is true of them; their sides have S pixels, the masks' have 224.

    Args:
        pictures (Tensor): (N, 3, S, S); the first ``CHOSEN_ON`` choose the threshold.
        masks (Tensor): (N, 224, 224), bool.
        symbols (tuple[Tensor, Tensor]): The same symbols of two vendors, (M, 3, S, S) each.
        objects (Tensor): (L, 3, S, S).
        classes (Tensor): Of the objects, (L, ).
    """

    pictures: Tensor
    masks: Tensor
    symbols: tuple[Tensor, Tensor]
    objects: Tensor
    classes: Tensor


def read_truth(folder: Path, size: int, symbols: int) -> Truth:
    """Read what ``tools/dataset_converters/photographs.py`` wrote.

    Args:
        folder (Path): With ``truth``, ``classes`` and ``emoji``.
        size (int): Pixels of a side.
        symbols (int): Number of symbols, drawn from all.

    Raises:
        FileNotFoundError: A part is missing.
    """
    masks = _files(folder / 'truth', '*.png')
    masks = random.Random(0).sample(masks, len(masks))
    objects = _files(folder / 'classes', '*/*.jpg')
    vendors = sorted(path for path in (folder / 'emoji').glob('*') if path.is_dir())
    names = [path.name for path in _files(folder / 'emoji', f'{vendors[0].name}/*.png')] \
        if len(vendors) == 2 else []
    if len(names) < 2:
        raise FileNotFoundError(f'expected the emoji of two vendors at `{folder / "emoji"}`, found '
                                f'{[path.name for path in vendors]}')
    names = sorted(random.Random(0).sample(names, min(symbols, len(names))))
    labels = sorted({path.parent.name for path in objects})
    return Truth(
        _read([path.with_suffix('.jpg') for path in masks], size),
        torch.stack([torch.from_numpy(np.array(Image.open(path))) > 127 for path in masks]),
        tuple(_read([vendor / name for name in names], size) for vendor in vendors),
        _read(objects, size),
        torch.tensor([labels.index(path.parent.name) for path in objects]))


def _files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    if not found:
        raise FileNotFoundError(f'expected pictures at `{folder}`, found none: run '
                                'tools/dataset_converters/photographs.py with --emoji')
    return found


def _read(paths: list[Path], size: int) -> Tensor:
    return torch.stack([normalised(Image.open(path), size) for path in paths])


class Seen(NamedTuple):
    """What a network makes of the pictures.

    Args:
        maps (Tensor): Saliency of the pictures with masks, (N, 224, 224).
        symbols (tuple[Tensor, Tensor]): Class tokens of both vendors' symbols, (M, C).
        objects (Tensor): Class tokens of the objects, (L, C).
    """

    maps: Tensor
    symbols: tuple[Tensor, Tensor]
    objects: Tensor


@torch.no_grad()
def see(truth: Truth, embed: Embed, decode: Callable[[Tensor], Tensor]) -> Seen:
    """Run a network on the pictures.

    Args:
        truth (Truth): Pictures.
        embed (Callable): The network.
        decode (Callable): Patch tokens (N, P, C) to saliency (N, 1, 224, 224).
    """
    def class_tokens(images: Tensor) -> Tensor:
        return torch.cat([embed(batch)[:, 0] for batch in images.split(32)])

    maps = torch.cat([decode(embed(batch)[:, 1:])[:, 0] for batch in truth.pictures.split(32)])
    return Seen(maps, tuple(map(class_tokens, truth.symbols)), class_tokens(truth.objects))


def choose_threshold(maps: Tensor, masks: Tensor) -> float:
    """The threshold, of 0.05 to 0.95, at which maps (N, H, W) meet masks best."""
    levels = [level / 20 for level in range(1, 20)]
    return max(levels, key=lambda level: float(intersection_over_union(maps > level, masks).mean()))


def intersection_over_union(one: Tensor, two: Tensor) -> Tensor:
    """IoU of two masks (N, H, W), bool, of each picture; 1 where both are empty."""
    shared, joint = ((both).flatten(1).sum(1).float() for both in (one & two, one | two))
    return torch.where(joint > 0, shared / joint.clamp(min=1), 1.)


def area_under_curve(maps: Tensor, masks: Tensor) -> Tensor:
    """Chance that a pixel of the mask has more saliency than another one, of each picture.

    Args:
        maps (Tensor): (N, H, W) between 0 and 1; values of one of ``LEVELS`` levels are equal.
        masks (Tensor): (N, H, W), bool, neither empty nor full.
    """
    levels = (maps.flatten(1) * LEVELS).long()
    inside = masks.flatten(1).float()
    inner, outer = (torch.zeros(len(maps), LEVELS + 1).scatter_add_(1, levels, part)
                    for part in (inside, 1 - inside))
    below = outer.cumsum(1) - 0.5 * outer  # half of the pixels of the same level
    return (inner * below).sum(1) / (inner.sum(1) * outer.sum(1))


def find_symbols(symbols: tuple[Tensor, Tensor]) -> Tensor:
    """Whether each symbol of the first vendor is nearest to the same one of the second, (M, )."""
    one, two = (torch.nn.functional.normalize(part, dim=-1) for part in symbols)
    return ((one @ two.T).argmax(1) == torch.arange(len(one))).float()


def match_classes(objects: Tensor, classes: Tensor) -> Tensor:
    """Whether the nearest other object of each is of its class, (L, )."""
    unit = torch.nn.functional.normalize(objects, dim=-1)
    likeness = (unit @ unit.T).fill_diagonal_(-2)
    return (classes[likeness.argmax(1)] == classes).float()


def score(truth: Truth, seen: Seen, dense: Seen) -> dict[str, Tensor]:
    """Scores of each picture by measure.

    The threshold of the maps is the dense network's, on pictures that are not judged: a user who
    replaces the network leaves the threshold as it is.

    Args:
        truth (Truth): What is true.
        seen (Seen): What a network makes of it.
        dense (Seen): What the dense network makes of it.
    """
    level = choose_threshold(dense.maps[:CHOSEN_ON], truth.masks[:CHOSEN_ON])
    maps, masks = seen.maps[CHOSEN_ON:], truth.masks[CHOSEN_ON:]
    return {
        MASK: intersection_over_union(maps > level, masks),
        AREA: area_under_curve(maps, masks),
        SYMBOL: find_symbols(seen.symbols),
        CLASS: match_classes(seen.objects, truth.classes),
        AGREEMENT: intersection_over_union(maps > 0.5, dense.maps[CHOSEN_ON:] > 0.5)}


class Difference(NamedTuple):
    """A mean, its difference from the dense network's, and the half of its 95 % interval."""

    mean: float
    dense: float
    less: float
    half: float
    count: int

    def __str__(self) -> str:
        return f'{self.less:+.3f} ± {self.half:.3f}'


def compare(scores: Tensor, dense: Tensor) -> Difference:
    """Compare two networks' scores (N, ) of the same pictures."""
    less = scores.double() - dense.double()
    half = 1.96 * float(less.std()) / len(less)**0.5
    return Difference(float(scores.mean()), float(dense.mean()), float(less.mean()), half,
                      len(less))
