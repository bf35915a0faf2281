"""Search set: a seeded random subset of a data set's classes (KCR-Transformer, section 4.1)."""

from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset

from mmkcr.registry import DATASETS
from .part import class_labels


@DATASETS.register_module()
class ClassSubset(BaseDataset):
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
        """Draw the classes; annotations of their samples, with labels within the subset."""
        self.whole.full_init()  # which may find the names of its classes
        self._metainfo = self.whole.metainfo
        names = self._metainfo.get('classes')
        labels = class_labels(self.whole)
        total = len(names) if names is not None else int(labels.max(initial=-1)) + 1
        if self.num_classes > total:
            raise ValueError(f'expected `num_classes` of a class subset to be at most the '
                             f'{total} classes of the data set, found `{self.num_classes}`')
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
