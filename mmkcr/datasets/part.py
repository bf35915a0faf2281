"""A part of a data set's samples."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.dataset import ClassBalancedDataset, ConcatDataset, RepeatDataset
from torch.utils.data import Dataset


class DatasetPart(Dataset):
    """Some samples of a dataset, which is shared and not copied.

    Every other attribute (``metainfo``, ``pipeline`` ...) is that of the whole
    dataset. If the dataset mixes images, as mosaics do, these all come from the part, and so does
    the sample that is drawn in place of one that the transforms reject.

    Args:
        dataset (Dataset): The whole, map-style.
        indices (Sequence[int]): Indices into it.

    Raises:
        ValueError: A dataset that mixes images is inside another wrapper.
    """

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        _refuse_mixing_inside(dataset)
        self.dataset = dataset
        self.indices = list(indices)
        self._cached: dict[tuple[int, int], list] = {}  # images that transforms keep, to mix them

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        dataset, place = _find(self, index)
        if not mixes_images(dataset):
            return self._read(dataset, place)
        mixer, indices = self.dataset, self.indices
        while isinstance(mixer, DatasetPart):  # of a part of a part, too, partners are its own
            mixer, indices = mixer.dataset, [mixer.indices[place] for place in indices]
        # a view of the mixing set that finds partners in this part; its transforms, and what hooks
        # set on it, stay shared
        view, inner = copy.copy(mixer), copy.copy(self)
        inner.dataset, inner.indices = view.dataset, indices
        view.dataset, view.num_samples = inner, len(self)
        return view[index]

    def _read(self, dataset: Dataset, place: int) -> Any:
        if not hasattr(dataset, '_rand_another'):  # it does not replace what is rejected
            return dataset[place]
        dataset.full_init()  # else every view would read the annotations
        view = copy.copy(dataset)
        view._rand_another = lambda: self._another(dataset)
        steps = list(getattr(getattr(view, 'pipeline', None), 'transforms', None) or [])
        for number, step in enumerate(steps):
            if hasattr(step, 'results_cache'):  # mmdet's CachedMosaic
                # its other settings, which hooks may have changed, are as they are
                steps[number] = copy.copy(step)
                steps[number].results_cache = self._cached.setdefault((id(dataset), number), [])
                view.pipeline = copy.copy(dataset.pipeline)
                view.pipeline.transforms = steps
        return view[place]

    def _another(self, dataset: Dataset) -> int:
        """Draw a sample of this part that the same set reads."""
        while True:
            inner, place = _find(self, np.random.randint(len(self)))
            if inner is dataset:
                return place

    def get_data_info(self, index: int) -> dict:
        """Annotation of a sample of the part, for batch samplers and class samplers."""
        return self.dataset.get_data_info(self.indices[index])

    def get_cat_ids(self, index: int) -> list[int]:
        """Categories of a sample of the part."""
        return self.dataset.get_cat_ids(self.indices[index])

    def get_gt_labels(self) -> np.ndarray:
        """Labels of the samples of this part, (len(self),), of a set that knows its own."""
        return np.asarray(self.dataset.get_gt_labels())[self.indices]

    @property
    def pipeline(self) -> Any:
        """The whole dataset's pipeline; setting it changes the whole dataset's."""
        return self.dataset.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Any) -> None:
        self.dataset.pipeline = pipeline

    def __getattr__(self, name: str) -> Any:
        # before `__init__` and while unpickling there is no `dataset`: this would recurse; subsets
        # would be of the whole
        if name.startswith('__') or name in ('dataset', 'datasets', 'get_subset', 'get_subset_'):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __deepcopy__(self, memo: dict) -> 'DatasetPart':
        # a config that holds it is copied by `Runner.build_dataloader`
        copied = copy.copy(self)
        copied._cached = {}
        return copied


def _find(dataset: Dataset, place: int) -> tuple[Dataset, int]:
    """The set that reads a sample, inside of parts and of what repeats or joins sets, and where."""
    while isinstance(dataset, (RepeatDataset, ClassBalancedDataset, ConcatDataset, DatasetPart)):
        if isinstance(dataset, DatasetPart):
            dataset, place = dataset.dataset, dataset.indices[place]
        elif isinstance(dataset, ConcatDataset):
            child, place = dataset._get_ori_dataset_idx(place)
            dataset = dataset.datasets[child]
        else:
            dataset, place = dataset.dataset, dataset._get_ori_dataset_idx(place)
    return dataset, place


def inner_sets(dataset: Any) -> list:
    """The data sets that a data set wraps or joins; none of an innermost one."""
    # not hasattr: a wrapper may forward attributes of what it wraps
    attributes = getattr(dataset, '__dict__', {})
    for name in ('dataset', '_dataset'):  # the latter is MMEngine's, for `num_batch_per_epoch`
        if name in attributes:
            return [attributes[name]]
    return list(attributes.get('datasets') or [])


def mixes_images(dataset: Dataset) -> bool:
    """Whether a data set wraps another and mixes its images (``MultiImageMixDataset``)."""
    return {'dataset', 'pipeline'} <= getattr(dataset, '__dict__', {}).keys()


def _refuse_mixing_inside(dataset: Dataset, wrapper: Dataset | None = None) -> None:
    """Refuse a data set that mixes images inside of another that is not a part.

    Raises:
        ValueError: The partners of its images cannot be kept within a part.
    """
    if wrapper is not None and mixes_images(dataset):
        raise ValueError(f'expected `{type(dataset).__name__}` as the outermost data set, so that '
                         'images of one part mix with each other only, found it in a '
                         f'`{type(wrapper).__name__}`')
    # parts, and sets that mix, may be around another while nothing else is around them
    outermost = wrapper is None and (mixes_images(dataset) or isinstance(dataset, DatasetPart))
    for child in inner_sets(dataset):
        _refuse_mixing_inside(child, None if outermost else dataset)


def class_labels(dataset: Dataset) -> np.ndarray:
    """The class of every sample, (n,), int64.

    Raises:
        TypeError: A sample has no integer ``gt_label``, or several.
    """
    labels = [dataset.get_data_info(index).get('gt_label') for index in range(len(dataset))]
    wrong = [label for label in labels if not isinstance(label, (int, np.integer))]
    if wrong:
        raise TypeError(f'expected one integer `gt_label` per sample of a '
                        f'`{type(dataset).__name__}`, found `{wrong[0]}`')
    return np.array(labels, dtype=np.int64)


def sample_sources(dataset: Dataset) -> Sequence[int]:
    """Map every index of a data set to its original sample: ``RepeatDataset`` repeats samples."""
    if isinstance(dataset, (RepeatDataset, ClassBalancedDataset)):
        inner = sample_sources(dataset.dataset)
        return [inner[dataset._get_ori_dataset_idx(index)] for index in range(len(dataset))]
    if isinstance(dataset, DatasetPart):
        inner = sample_sources(dataset.dataset)
        return [inner[index] for index in dataset.indices]
    if mixes_images(dataset):
        return sample_sources(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        joined: list[int] = []
        for child in dataset.datasets:
            start = max(joined, default=-1) + 1  # behind the samples of the sets before
            joined += [start + source for source in sample_sources(child)]
        return joined
    return range(len(dataset))


def count_sources(dataset: Dataset) -> int:
    """Number of original samples of a data set, see :func:`sample_sources`."""
    # to enumerate repeated samples takes a second a million
    while isinstance(dataset, (RepeatDataset, ClassBalancedDataset)) or mixes_images(dataset):
        dataset = dataset.dataset
    return len(set(sample_sources(dataset)))
