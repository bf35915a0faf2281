"""Parts of data sets: some of their samples, or of their classes."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset, ClassBalancedDataset, ConcatDataset, RepeatDataset
from torch.utils.data import Dataset

from mmkcr.registry import DATASETS


class DatasetPart(Dataset):
    """Some samples of a dataset, which is shared and not copied.

    Every other attribute (``metainfo``, ``pipeline`` ...) is that of the whole
    dataset. If the dataset mixes images, as mosaics do, these all come from the part, and so does
    the sample that is drawn in place of one that the transforms reject.

    Args:
        dataset (Dataset): The whole, map-style. A part of a plain part is one of the whole.
        indices (Sequence[int]): Indices into it.

    Raises:
        ValueError: A dataset that mixes images is inside another wrapper.
    """

    def __init__(self, dataset: Dataset, indices: Sequence[int]) -> None:
        self.indices = list(indices)
        if type(dataset) is DatasetPart:  # others know more of their samples
            dataset, self.indices = dataset.dataset, [dataset.indices[i] for i in self.indices]
        _refuse_mixing_inside(dataset.dataset if mixes_images(dataset) else dataset)
        self.dataset = dataset
        self._cached: dict[tuple[int, int], list] = {}  # images that transforms keep, to mix them

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        dataset, place = _find(self, index)
        if not mixes_images(dataset):
            return self._read(dataset, place)
        # a view of the mixing set that finds partners in this part; its transforms, and what hooks
        # set on it, stay shared
        view, inner = copy.copy(dataset), copy.copy(self)
        inner.dataset = dataset.dataset
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
        """Draw another sample of this part, read by the same innermost set."""
        while True:
            inner, place = _find(self, np.random.randint(len(self)))
            if inner is dataset:
                return place

    def _get_ori_dataset_idx(self, index: int) -> int:
        return self.indices[index]  # by the name that MMEngine's wrappers have for it

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


#: Sets whose samples are those of one other set.
_SELECTIONS = (RepeatDataset, ClassBalancedDataset, DatasetPart)


def _find(dataset: Dataset, place: int) -> tuple[Dataset, int]:
    """The innermost set that reads a sample, inside parts, repeated and joined sets, and its place.
    """
    while isinstance(dataset, (ConcatDataset, *_SELECTIONS)):
        inner = dataset._get_ori_dataset_idx(place)
        if isinstance(dataset, ConcatDataset):
            child, place = inner
            dataset = dataset.datasets[child]
        else:
            dataset, place = dataset.dataset, inner
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


def _refuse_mixing_inside(dataset: Dataset) -> None:
    """Refuse a wrapper of a set that mixes images: their partners may be of another part."""
    for child in inner_sets(dataset):
        if mixes_images(child):
            raise ValueError(f'expected `{type(child).__name__}` as the outermost data set, so '
                             'that images of one part mix with each other only, found it in a '
                             f'`{type(dataset).__name__}`')
        _refuse_mixing_inside(child)


def class_labels(dataset: Dataset) -> np.ndarray:
    """The class of every sample, (n,), int64; refuses samples without one, or with several."""
    labels = [dataset.get_data_info(index).get('gt_label') for index in range(len(dataset))]
    wrong = [label for label in labels if not isinstance(label, (int, np.integer))]
    if wrong:
        raise TypeError(f'expected one integer `gt_label` per sample of a '
                        f'`{type(dataset).__name__}`, found `{wrong[0]}`')
    return np.array(labels, dtype=np.int64)


def sample_sources(dataset: Dataset) -> Sequence[int]:
    """Map every index of a data set to its original sample: ``RepeatDataset`` repeats samples."""
    if isinstance(dataset, _SELECTIONS):
        inner = sample_sources(dataset.dataset)
        return [inner[dataset._get_ori_dataset_idx(index)] for index in range(len(dataset))]
    if mixes_images(dataset):
        return sample_sources(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        joined: list[int] = []
        for child in dataset.datasets:
            start = max(joined, default=-1) + 1  # behind the samples of the sets before
            joined += [start + source for source in sample_sources(child)]
        return joined
    return range(len(dataset))


@DATASETS.register_module()
class ClassSubset(BaseDataset):
    """Keeps the samples of some classes, drawn at random, and counts their labels from 0.

    The search set of KCR-Transformer, section 4.1. The draw depends on the seed and the number of
    classes alone; a smaller subset of a seed is contained in a larger one.

    Args:
        dataset (BaseDataset | dict): A data set with one integer ``gt_label`` per sample, such
            as mmpretrain's ``ImageNet`` or ``CustomDataset``. It is not altered.
        num_classes (int): Number of classes to keep. Defaults to 100.
        seed (int): Seed of the draw. Defaults to 0.
        lazy_init (bool): Whether to leave reading the annotations to ``full_init``.
            Defaults to False.

    Raises:
        ValueError: There are fewer classes, or no sample is of a class that was drawn.
        TypeError: A sample has more than one label, or the data set is of another sort.
    """

    def __init__(self, dataset: BaseDataset | dict[str, Any], num_classes: int = 100,
                 seed: int = 0, lazy_init: bool = False) -> None:
        # not as `dataset`: beside a `pipeline` that is a set that mixes images
        self.whole = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
        if not isinstance(self.whole, BaseDataset):
            raise TypeError('expected a `BaseDataset` to take classes from, found a '
                            f'`{type(self.whole).__name__}`')
        self.num_classes = num_classes
        self.seed = seed
        super().__init__(serialize_data=self.whole.serialize_data, test_mode=self.whole.test_mode,
                         lazy_init=lazy_init, max_refetch=self.whole.max_refetch)
        self.pipeline = self.whole.pipeline

    def load_data_list(self) -> list[dict[str, Any]]:
        """Draw the classes; annotations of their samples, with labels within the subset.

        Raises:
            ValueError: More classes than the data set has, or classes without samples.
        """
        self.whole.full_init()  # which may find the names of its classes
        self._metainfo = self.whole.metainfo
        names = self._metainfo.get('classes')
        labels = class_labels(self.whole)
        total = len(names) if names is not None else int(labels.max(initial=-1)) + 1
        if not 0 < self.num_classes <= total:
            raise ValueError(f'expected `num_classes` of a class subset to be 1 to {total}, all '
                             f'classes of the data set, found `{self.num_classes}`')
        # the beginning of one permutation, so that smaller subsets lie within larger ones
        drawn = np.random.default_rng(self.seed).permutation(total)[:self.num_classes]
        self.source_classes = np.sort(drawn)
        places = np.flatnonzero(np.isin(labels, drawn))
        if not len(places):
            raise ValueError(f'expected samples of the drawn classes '
                             f'`{self.source_classes.tolist()}`, found none among '
                             f'{len(labels)} samples')
        self._metainfo['classes'] = tuple(names[i] if names is not None else str(i)
                                          for i in self.source_classes)
        places_of = np.searchsorted(self.source_classes, labels).tolist()
        return [{**self.whole.get_data_info(place), 'gt_label': places_of[place]}
                for place in places.tolist()]

    @property
    def metainfo(self) -> dict[str, Any]:
        """Copy of the data set's meta information with the kept ``classes``."""
        self.full_init()  # wrappers ask before it
        return super().metainfo

    def get_gt_labels(self) -> np.ndarray:
        """Labels of all the samples, (len(self),), from 0 to ``num_classes - 1``."""
        return class_labels(self)

    def get_cat_ids(self, idx: int) -> list[int]:
        """Label of a sample, as a list."""
        return [self.get_data_info(idx)['gt_label']]
