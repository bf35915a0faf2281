"""Search set: a seeded random subset of a data set's classes (KCR-Transformer, section 4.1)."""

import copy
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from mmkcr.registry import DATASETS
from .part import class_labels


@DATASETS.register_module()
class ClassSubset:
    """Keeps the samples of some classes, drawn at random, and counts their labels from 0.

    The draw depends only on the seed and the number of classes. A smaller subset of the same seed
    is contained in a larger one.

    Args:
        dataset (BaseDataset | dict): A data set with one integer ``gt_label`` per sample, such
            as mmpretrain's ``ImageNet`` or ``CustomDataset``. It is not altered.
        num_classes (int): Number of classes to keep. Defaults to 100.
        seed (int): Seed of the draw. Defaults to 0.
        lazy_init (bool): Whether to leave reading the annotations to ``full_init``.
            Defaults to False.

    Raises:
        ValueError: The number of classes is not within 1 and the data set's, or no sample is
            of a class that was drawn.
        TypeError: A sample has more than one label, or the data set is of another sort.
    """

    def __init__(self, dataset: BaseDataset | dict[str, Any], num_classes: int = 100,
                 seed: int = 0, lazy_init: bool = False) -> None:
        if num_classes < 1:
            raise ValueError(f'expected `num_classes` of a class subset to be at least 1, found '
                             f'`{num_classes}`')
        self.dataset = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
        if not isinstance(self.dataset, BaseDataset):
            raise TypeError('expected a `BaseDataset` to take classes from, found a '
                            f'`{type(self.dataset).__name__}`')
        self.num_classes = num_classes
        self.seed = seed
        self._fully_initialized = False
        if not lazy_init:
            self.full_init()

    def full_init(self) -> None:
        """Read the annotations, draw the classes and find their samples."""
        if self._fully_initialized:
            return
        self.dataset.full_init()
        names = self.dataset.metainfo.get('classes')
        labels = class_labels(self.dataset)
        total = len(names) if names is not None else int(labels.max(initial=-1)) + 1
        if self.num_classes > total:
            raise ValueError(f'expected `num_classes` of a class subset to be at most the '
                             f'{total} classes of the data set, found `{self.num_classes}`')
        # the beginning of one permutation, so that smaller subsets lie within larger ones
        drawn = np.random.default_rng(self.seed).permutation(total)[:self.num_classes]
        self.source_classes = np.sort(drawn)
        self._indices = np.flatnonzero(np.isin(labels, drawn))
        if not len(self._indices):
            raise ValueError(f'expected samples of the drawn classes '
                             f'`{self.source_classes.tolist()}`, found none among '
                             f'{len(labels)} samples')
        self._names = tuple(names[i] if names is not None else str(i)
                            for i in self.source_classes)
        self._fully_initialized = True

    @property
    def metainfo(self) -> dict[str, Any]:
        """Copy of the data set's meta information with the kept ``classes``."""
        self.full_init()
        return dict(copy.deepcopy(self.dataset.metainfo), classes=self._names)

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """Copy of a sample's annotation, its ``gt_label`` counted within the subset."""
        self.full_init()
        info = self.dataset.get_data_info(int(self._indices[idx]))
        info['gt_label'] = int(np.searchsorted(self.source_classes, info['gt_label']))
        return info

    def get_gt_labels(self) -> np.ndarray:
        """Labels of all the samples, (len(self),), from 0 to ``num_classes - 1``."""
        return np.array([self.get_data_info(idx)['gt_label'] for idx in range(len(self))])

    def get_cat_ids(self, idx: int) -> list[int]:
        """Label of a sample, as a list."""
        return [self.get_data_info(idx)['gt_label']]

    def __getitem__(self, idx: int) -> Any:
        for _ in range(self.dataset.max_refetch + 1):
            sample = self.dataset.pipeline(self.get_data_info(idx))
            if sample is not None or self.dataset.test_mode:
                return sample
            idx = self._rand_another()  # as MMEngine does where the transforms reject a sample
        raise ValueError(f'expected transforms that accept one of {self.dataset.max_refetch + 1} '
                         f'samples of `{type(self.dataset).__name__}`, found all rejected')

    def _rand_another(self) -> int:
        return np.random.randint(len(self))

    def __len__(self) -> int:
        self.full_init()
        return len(self._indices)
