"""Parts of data sets: nothing from outside of a part reaches it."""

import pytest
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


def test_a_part_has_no_subset():
    """It would be of the whole, or change it, which others share."""
    part = DatasetPart(Numbers(pipeline=[lambda info: info['number']]), [15, 16, 17])
    for name in ('get_subset', 'get_subset_'):
        with pytest.raises(AttributeError):
            getattr(part, name)
