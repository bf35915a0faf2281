"""Parts of data sets: nothing from outside of a part reaches it."""

import numpy as np
import pytest
from mmdet.datasets.transforms import CachedMosaic
from mmengine.dataset import BaseDataset, ConcatDataset, RepeatDataset

import mmkcr  # noqa: F401  (makes torchvision importable for the hosts)
from mmkcr.datasets import ClassSubset, DatasetPart


class Numbers(BaseDataset):
    """Sample i has the number i, and a class of two; or what its transforms make of it."""

    METAINFO = dict(classes=('even', 'odd'))

    def __init__(self, **kwargs):
        super().__init__(**kwargs, serialize_data=False)  # which collects garbage every time

    def load_data_list(self):
        return [dict(number=i, gt_label=i % 2) for i in range(20)]


def accepted(info):
    """Rejects every fourth sample, as mmdet's RandomCrop and FilterAnnotations do."""
    return None if info['number'] % 4 == 3 else info['number']


@pytest.mark.parametrize('wrap', [
    lambda data: data, lambda data: RepeatDataset(data, 2),
    lambda data: ConcatDataset([data, Numbers(pipeline=[lambda info: 100 + info['number']])]),
    lambda data: ConcatDataset([dict(type=RepeatDataset, dataset=data, times=2), data]),
    lambda data: ClassSubset(data, 2), lambda data: DatasetPart(data, range(20))],
    ids=['set', 'repeated', 'joined', 'both', 'classes', 'part'])
def test_the_samples_in_place_of_rejected_ones_are_of_the_part(wrap):
    whole = wrap(Numbers(pipeline=[accepted]))
    places = [i for i in range(len(whole)) if i % 20 < 10]
    numbers = {int(DatasetPart(whole, places)[i]) for _ in range(20) for i in range(len(places))}
    assert {number for number in numbers if number < 100} == {
        i for i in range(10) if i % 4 != 3}
    assert all(number % 100 < 10 for number in numbers)


def test_images_that_a_mosaic_keeps_are_of_the_part():
    """Both parts have one transform, and without workers both run in one process."""

    def load(info):
        return dict(info, img=np.full((8, 8, 3), info['number'], np.uint8),
                    gt_bboxes=np.zeros((1, 4), np.float32), gt_ignore_flags=np.zeros(1, bool),
                    gt_bboxes_labels=np.zeros(1, np.int64))

    mosaic = CachedMosaic(img_scale=(8, 8), pad_val=0, max_cached_images=10, random_pop=False)
    whole = Numbers(pipeline=[load, mosaic, lambda results: results['img']])
    low, high = (DatasetPart(whole, places) for places in (range(10), range(10, 20)))
    for i in range(10):
        pixels = high[i], low[i]
    found = [np.unique(image) for image in pixels]
    assert all(found[0][found[0] > 0] >= 10) and all(found[1] < 10)
    assert not mosaic.results_cache


def test_a_part_has_no_subset():
    """It would be of the whole, or change it, which others share."""
    part = DatasetPart(Numbers(pipeline=[lambda info: info['number']]), [15, 16, 17])
    for name in ('get_subset', 'get_subset_'):
        with pytest.raises(AttributeError):
            getattr(part, name)
