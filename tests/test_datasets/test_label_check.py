"""Masks with labels out of range are named; everything else passes untouched."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import BaseDataset, Compose, ConcatDataset
from mmengine.runner.runner import _SlicedDataset
from mmengine.structures import PixelData
from mmseg.datasets import MultiImageMixDataset
from mmseg.registry import TRANSFORMS
from mmseg.structures import SegDataSample

from mmkcr.datasets.data_check import CheckSegLabels, watch_labels


def packed(*labels):
    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.tensor([[labels]])),
                           metainfo=dict(seg_map_path='masks/7.png'))
    return dict(inputs=torch.zeros(3, 1, len(labels)), data_samples=sample)


@pytest.mark.parametrize('labels, wrong', [
    ((0, 9, 255), None), ((255, ), None), ((0, 10), 10), ((3, 254, 255), 254), ((0, -1), -1)])
def test_labels(labels, wrong):
    results, check = packed(*labels), CheckSegLabels(10)
    if wrong is None:
        assert check(results) is results
        return
    with pytest.raises(ValueError, match=f'labels below 10, .* or 255, found {wrong} in the mask '
                                         '`masks/7.png`'):
        check(results)


def test_other_samples_pass():
    for results in (dict(inputs=1), dict(data_samples=[1]), dict(data_samples=SegDataSample())):
        assert CheckSegLabels(2)(results) is results


def test_masks_of_a_set_that_mixes_images():
    class Set(BaseDataset):
        METAINFO, ignore_index = dict(classes=('a', )), 254

        def load_data_list(self):
            return [dict(label=254), dict(label=7)]

    TRANSFORMS.register_module(name='Packed', module=lambda: lambda info: packed(info['label']),
                               force=True)
    mixed = MultiImageMixDataset(ConcatDataset([Set(), Set()]), [dict(type='Packed')])
    watch_labels(mixed, 2), watch_labels(mixed, 2)
    assert mixed[0] is not None and len(mixed.pipeline) == len(mixed.pipeline_types) == 2
    with pytest.raises(ValueError, match='labels below 2, .* found 7'):
        mixed[1]


def test_a_data_set_is_watched_once_and_through_wrappers():
    plain, other = (SimpleNamespace(ignore_index=254, pipeline=Compose([])) for _ in range(2))
    wrapper = _SlicedDataset(SimpleNamespace(dataset=plain), 1)  # of `num_batch_per_epoch`
    joined = SimpleNamespace(datasets=[wrapper, other])  # as of PASCAL VOC with the masks of SBD
    watch_labels(joined, 3)
    assert plain.pipeline.transforms
    watch_labels(wrapper, 3), watch_labels(plain, 3)
    for data in (plain, other):
        (check, ) = data.pipeline.transforms
        assert (check.num_classes, check.ignore_index) == (3, 254)
    watch_labels(object(), 3)
