"""Calibration images in batches of any size."""

import copy
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmkcr.core.forward import flat_tensors
from mmkcr.core.processes import count_processes, find_rank
from mmkcr.visualization import show_progress

#: Groups of images that a ridge is chosen by.
GROUPS = 5
#: Least share of an image's area that a crop has.
LEAST_AREA = 0.25


class ImageBatches(Sequence):
    """Images in batches of a maximum size; a batch has neighbours of one shape or kind.

    Derived classes load images that are not in memory.

    Args:
        images (Sequence): Images (1, C, H, W) in memory, or whatever a derived class loads from.
        size (int): Maximum number of images in a batch. Defaults to 1.
    """

    def __init__(self, images: Sequence[Any], size: int = 1) -> None:
        self._images, self._size = images, size
        self._batches = [alike[start:start + size] for alike in (
            list(group) for _, group in itertools.groupby(images, self._kind))
            for start in range(0, len(alike), size)]

    def sources(self) -> list[Any]:
        """The origin of each image, as the file of a crop; here each image is its own origin."""
        return [*range(len(self._images))]

    def pick(self, places: Iterable[int], size: int) -> 'ImageBatches':
        """The images at some places, in their order, in batches of another size."""
        return self._other([self._images[place] for place in places], size)

    def _kind(self, image: Any) -> Any:
        return image.shape

    def _batch(self, images: list[Any]) -> Any:
        return images[0] if len(images) == 1 else torch.cat(images)

    def _other(self, images: Sequence[Any], size: int) -> 'ImageBatches':
        other = copy.copy(self)
        ImageBatches.__init__(other, images, size)
        return other

    @property
    def images(self) -> int:
        """Number of images."""
        return len(self._images)

    def sizes(self) -> list[int]:
        """Number of images of each batch."""
        return [len(batch) for batch in self._batches]

    def of_size(self, size: int) -> 'ImageBatches':
        """All images in batches of another size."""
        return self._other(self._images, size)

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self._other([image for batch in self._batches[place] for image in batch],
                               self._size)
        return self._batch(self._batches[place])


def of_size(batches: Sequence[Any], size: int) -> Sequence[Any]:
    """All images in batches of another size; a user's own batches stay as they are."""
    return batches.of_size(size) if hasattr(batches, 'of_size') else batches


class AugmentedImages(ImageBatches):
    """Images, and behind them random crops of the images.

    A crop has at least :data:`LEAST_AREA` of the area, and is resized to the size of its image.
    Half of the crops are mirrored.

    Args:
        base (ImageBatches): The images.
        count (int): Number of images and crops together.
        seed (int): Seed of the crops.
    """

    def __init__(self, base: ImageBatches, count: int, seed: int) -> None:
        self._base, self._seed = base, seed
        #: Place in the base, and 0 for the image itself or the number of its crop.
        turns = -(-count // base.images)
        places = [(place, turn) for turn in range(turns) for place in range(base.images)]
        super().__init__(places[:max(count, base.images)])

    def sources(self) -> list[Any]:
        """A crop has the source of its image."""
        known = self._base.sources()
        return [known[place] for place, _ in self._images]

    def _kind(self, image: tuple[int, int]) -> Any:
        return self._base._kind(self._base._images[image[0]])

    def _batch(self, images: list[tuple[int, int]]) -> Any:
        batch = self._base._batch([self._base._images[place] for place, _ in images])
        inputs = batch['inputs'] if isinstance(batch, Mapping) else batch
        crops = torch.stack([self._crop(one, *image) if image[1] else one
                             for one, image in zip(inputs, images)])
        return dict(batch, inputs=crops) if isinstance(batch, Mapping) else crops

    def _crop(self, image: Tensor, place: int, turn: int) -> Tensor:
        """A random crop of an image (C, H, W)."""
        draw = torch.Generator().manual_seed(self._seed + place + turn * self._base.images)
        area, across, down, mirrored = torch.rand(4, generator=draw).tolist()
        height, width = image.shape[-2:]
        share = (LEAST_AREA + (1 - LEAST_AREA) * area)**0.5
        rows, columns = max(round(share * height), 1), max(round(share * width), 1)
        top, left = round(down * (height - rows)), round(across * (width - columns))
        crop = image[None, :, top:top + rows, left:left + columns]
        crop = F.interpolate(crop, (height, width), mode='bilinear', align_corners=False)[0]
        return crop.flip(-1) if mirrored < 0.5 else crop


def source_groups(batches: Sequence[Any]) -> list[int]:
    """Number of the group, of at most :data:`GROUPS`, of each image, or of each batch of a user.

    Images of one source are in one group. Sources that follow each other are in one group, too, as
    neighbours in a list of images are often alike. Groups are about equally large.
    """
    sources = batches.sources() if hasattr(batches, 'sources') else [*range(len(batches))]
    sizes = Counter(sources)  # in the order of their first images
    left, waiting, empty = len(sources), len(sizes), min(GROUPS, len(sizes))
    group_of: dict[Any, int] = {}
    group = filled = 0
    for source, size in sizes.items():
        group_of[source] = group
        filled, waiting = filled + size, waiting - 1
        # full, or as many sources wait as there are groups to fill
        if filled * empty >= left or waiting < empty:
            group, empty, left, filled = group + 1, empty - 1, left - filled, 0
    return [group_of[source] for source in sources]


class GroupedBatches(NamedTuple):
    """Batches, each with images of one group alone."""

    batches: Sequence[Any]
    #: Number of the group of every batch.
    groups: list[int]


def group_batches(batches: Sequence[Any], size: int) -> GroupedBatches:
    """All images in batches of another size, group by group; a user's own batches stay."""
    groups = source_groups(batches)
    if not hasattr(batches, 'pick'):
        return GroupedBatches(batches, groups)
    parts = []
    for group in sorted(set(groups)):
        parts.append(batches.pick([i for i, other in enumerate(groups) if other == group], size))
    return GroupedBatches(
        ChainedBatches(parts), [group for group, part in enumerate(parts) for _ in part])


class ChainedBatches(Sequence):
    """Several sequences of batches, one after another."""

    def __init__(self, parts: Sequence[Sequence[Any]]) -> None:
        self._parts = parts
        self._places = [(part, place) for part in parts for place in range(len(part))]

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(part.images for part in self._parts)

    def sizes(self) -> list[int]:
        """Number of images of each batch."""
        return [size for part in self._parts for size in part.sizes()]

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, place: int) -> Any:
        part, within = self._places[place]
        return part[within]


def images_of(batch: Any) -> int:
    """Number of images in a batch; 1 if the batch does not show it."""
    if isinstance(batch, Mapping):
        return images_of(batch.get('inputs', next(iter(batch.values()), None)))
    return len(batch) if isinstance(batch, (Tensor, list, tuple)) else 1


def count_images(batches: Sequence[Any]) -> int:
    """Number of images in batches that know it, or are of one size."""
    return getattr(batches, 'images', None) or len(batches) * images_of(batches[0])


def get_images(batch: Any) -> Tensor | None:
    """The images (B, C, H, W) of a batch, its first tensor or its ``inputs``; None without any."""
    images = batch['inputs'] if isinstance(batch, Mapping) and 'inputs' in batch else batch
    first = next(iter(flat_tensors(images)), None)
    return first if first is not None and first.ndim == 4 else None


def image_shapes(batches: Iterable[Any]) -> set[tuple[int, ...]]:
    """The different shapes (C, H, W) of images; an empty set for batches without images."""
    images = (get_images(batch) for batch in batches)
    return {tuple(some.shape[1:]) for some in images if some is not None}


def first_images(batches: Sequence[Any], count: int) -> Sequence[Any]:
    """The first batches that hold ``count`` images; all batches if they hold fewer."""
    return batches[:-(-count // images_of(batches[0]))]


def last_images(batches: Sequence[Any], count: int) -> Sequence[Any]:
    """The last batches that hold ``count`` images; at least one batch."""
    return batches[-max(-(-count // images_of(batches[0])), 1):]


class Share(Sequence):
    """The batches of this process, with the numbers of their images among those of all."""

    def __init__(self, batches: Sequence[Any]) -> None:
        sizes = batches.sizes() if hasattr(batches, 'sizes') else [
            images_of(batch) for batch in batches]
        stops = [*itertools.accumulate(sizes)]
        #: Number of images of all processes.
        self.total = stops[-1]
        #: Places of the own batches among all.
        self.places = range(find_rank(), len(batches), count_processes())
        self.numbers = [range(stops[place] - sizes[place], stops[place]) for place in self.places]
        self._batches = batches

    @property
    def images(self) -> int:
        """Number of images."""
        return sum(map(len, self.numbers))

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: int) -> Any:
        return self._batches[self.places[place]]


def take_share(batches: Sequence[Any]) -> Sequence[Any]:
    """The batches of this process, about equally many in each; all if there is no other."""
    return batches if count_processes() == 1 else Share(batches)


def number_batches(batches: Iterable[Any]) -> Iterable[tuple[Any, range]]:
    """Pairs of a batch and the numbers of its images, counted through all batches from 0."""
    if hasattr(batches, 'numbers'):
        yield from zip(batches, batches.numbers)
        return
    first = 0
    for batch in batches:
        images = range(first, first + images_of(batch))
        yield batch, images
        first = images.stop


def show_images(batches: Iterable[tuple[Any, range]], what: str, count: int,
                visible: bool) -> Iterable[tuple[Any, range]]:
    """Numbered batches behind a progress bar.

    Args:
        batches (Iterable): Pairs of :func:`number_batches`.
        what (str): Text before the bar.
        count (int): Number of images of all processes, which have about equal shares.
        visible (bool): Whether there is a bar.
    """
    return show_progress(batches, f'{what}, images', count // count_processes(),
                         visible=visible, size=lambda one: len(one[1]))


def single_images(given: Any) -> Sequence[Any]:
    """Batches of one image each, if ``given`` is a tensor (N, C, H, W) or a list of tensors.

    Other batches stay as they are.

    Raises:
        ValueError: Neither images (N, C, H, W) of floating point nor a sequence of batches.
    """
    if isinstance(given, Tensor):
        if given.ndim != 4 or not given.is_floating_point():
            raise ValueError('expected images as a tensor (N, 3, H, W) of floating point, '
                             f'found {tuple(given.shape)} of {given.dtype}')
        given = [given]
    # no arrays of numpy, whose first axis would be taken for batches, and no data sets
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        raise ValueError('expected images as a tensor (N, 3, H, W) or as a list of batches, '
                         f'found `{type(given).__name__}`: give such a tensor, or '
                         '`[images for images, *_ in loader]`')
    if isinstance(given, (list, tuple)) and all(
            isinstance(batch, Tensor) and batch.ndim == 4 for batch in given):
        return ImageBatches([image for batch in given for image in batch.split(1) if len(image)])
    return given


def split_batches(images: Any, held_out: Any,
                  count: int | None = None) -> tuple[Sequence[Any], Sequence[Any]]:
    """Split images into calibration batches and held-out batches, see :func:`single_images`.

    A single image serves for both.

    Args:
        images (Any): Images, or batches.
        held_out (Any): Held-out images or batches; None: the last images, of other sources.
        count (int, optional): Images that are held out at least. Defaults to None: a tenth.

    Raises:
        ValueError: There are no images, or none that are held out.
    """
    batches = single_images(images)
    if not len(batches):
        raise ValueError('expected at least one calibration image, found none')
    if held_out is not None:
        held_out = single_images(held_out)
        if not len(held_out):
            raise ValueError('expected at least one held-out image, found none: leave `held_out` '
                             'out for a tenth of the images')
        return batches, held_out
    if len(batches) < 2:
        return batches, batches
    count = count or max(1, len(batches) // 10)
    if not hasattr(batches, 'pick'):
        return batches[:-count], batches[-count:]
    first, last = _split_sources(batches.sources(), count)
    return batches.pick(first, 1), batches.pick(last, 1)


def _split_sources(sources: Sequence[Any], count: int) -> tuple[list[int], list[int]]:
    """Places of images to calibrate on, and of the last ``count`` or more, of other sources.

    Of a single source they are the last ones, too.
    """
    sizes = Counter(sources)
    held: set[Any] = set()
    for source in reversed(sizes):
        if sum(sizes[one] for one in held) >= count or len(held) + 1 == len(sizes):
            break
        held.add(source)
    places = [*range(len(sources))]
    if not held:
        return places[:-count], places[-count:]
    return ([place for place in places if sources[place] not in held],
            [place for place in places if sources[place] in held])


def augment_images(batches: Sequence[Any], count: int, seed: int) -> Sequence[Any]:
    """Images and crops of them.

    Args:
        batches (Sequence): Batches of images.
        count (int): Number of images and crops together; of more images all stay, without crops.
        seed (int): Seed of the crops.

    Raises:
        ValueError: They are batches of a user's own, not known to be images.
    """
    if not hasattr(batches, 'pick'):
        raise ValueError('expected images as a tensor (N, 3, H, W), or those of a config, to '
                         'augment, found batches of another form: augment them yourself')
    return AugmentedImages(batches, count, seed) if batches.images < count else batches


def count_seen(batches: Sequence[Any], held_out: Sequence[Any]) -> int:
    """Number of held-out images that are also among the calibration images, as copies of a file.

    Raises:
        ValueError: All calibration batches are equal.
    """
    known = {batch_digest(batch) for batch in batches}
    if len(known) == 1 < len(batches):
        raise ValueError(f'expected calibration images that differ, found that all {len(batches)} '
                         'batches are the same')
    return sum(images_of(batch) for batch in held_out if batch_digest(batch) in known)


def batch_digest(batch: Any) -> bytes:
    """SHA-256 of the values of a batch."""
    sha = hashlib.sha256()
    for tensor in flat_tensors(batch, floating=False):
        sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.digest()


def images_digest(batches: Sequence[Any]) -> str:
    """SHA-256 of batches, from their own method ``digest`` where images are in files."""
    if hasattr(batches, 'digest'):
        return batches.digest()
    sha = hashlib.sha256()
    for batch in batches:
        sha.update(batch_digest(batch))
    return sha.hexdigest()
