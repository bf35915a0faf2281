"""Views of data sets with other transforms, shares of ranks, undisturbed models."""

import random

import mmcv
import numpy as np
import pytest
import torch
from mmengine import dataset
from mmengine.registry import init_default_scope
from mmengine.runner.runner import _SlicedDataset
from mmpretrain.datasets import KFoldDataset
from mmpretrain.registry import MODELS
from mmseg.datasets import MultiImageMixDataset
from torch import nn
from torch.utils.data import DataLoader, Subset

from mmkcr.datasets import ClassSubset, DatasetPart
from mmkcr.engine.resume.batches import make_reproducible
from mmkcr.evaluation import features


class Numbers(dataset.BaseDataset):
    """Twelve samples of three classes; a sample is its value."""

    METAINFO = dict(classes=('a', 'b', 'c'))

    def __init__(self, **kwargs):
        super().__init__(**kwargs, serialize_data=False)  # which collects garbage every time

    def load_data_list(self):
        return [dict(value=i, gt_label=i % 3) for i in range(12)]

    def get_cat_ids(self, idx):
        return [self.get_data_info(idx)['gt_label']]


def numbers(sign=1):
    data = Numbers(pipeline=[])
    data.pipeline = lambda info: sign * (info['value'] + 1)
    return data


def fold_of(data):
    """mmpretrain's wrapper, which takes a config only."""
    fold = KFoldDataset(dict(type=Numbers, pipeline=[]), fold=1, num_splits=3)
    fold.dataset.pipeline = data.pipeline
    return fold


WRAPPERS = dict(
    plain=lambda data: data,
    first_batches=lambda data: _SlicedDataset(data, 5),
    subset=lambda data: Subset(data, [3, 1, 4]),
    part=lambda data: DatasetPart(data, [3, 1, 4]),
    part_of_several=lambda data: DatasetPart(dataset.ConcatDataset([data, numbers()]), [3, 13, 4]),
    classes=lambda data: ClassSubset(data, num_classes=2),
    part_of_classes=lambda data: DatasetPart(ClassSubset(data, num_classes=2), [3, 1, 4]),
    repeated=lambda data: dataset.RepeatDataset(data, 2),
    balanced=lambda data: dataset.ClassBalancedDataset(data, 1e-3),
    fold=lambda data: fold_of(data),
    several=lambda data: torch.utils.data.ConcatDataset([data, dataset.RepeatDataset(data, 2)]),
)


@pytest.mark.parametrize('name', WRAPPERS)
@pytest.mark.parametrize('seeded', [False, True])
def test_a_view_has_the_same_samples_with_other_transforms(name, seeded):
    wrapped = WRAPPERS[name](numbers())
    if seeded:  # as ExactResumeHook makes it, in place
        make_reproducible(DataLoader(wrapped), 0, 'train')
    before = [wrapped[i] for i in range(len(wrapped))]
    view = features.with_pipeline(wrapped, features.find_pipeline(numbers(sign=-1)))
    assert [view[i] for i in range(len(view))] == [-value for value in before]
    assert [wrapped[i] for i in range(len(wrapped))] == before
    assert len(before) >= 3 and min(before) > 0


def test_a_view_has_no_transforms_that_mix_images():
    """Such as YOLOX's mosaics, which go around a data set and would come behind the others."""
    mosaic = dict(type='mmseg.RandomMosaic', prob=1., img_scale=(8, 8))
    mixed = MultiImageMixDataset(dataset.ConcatDataset([numbers()]), [mosaic])
    view = features.with_pipeline(mixed, features.find_pipeline(numbers(sign=-1)))
    assert [view[i] for i in range(len(view))] == [-value for value in range(1, 13)]


def test_a_data_set_without_transforms_is_refused():
    with pytest.raises(ValueError, match='a `pipeline`, found `list` without one'):
        features.find_pipeline(Subset([1, 2], [0]))
    with pytest.raises(ValueError, match='a `pipeline`, found `TensorDataset`'):
        features.with_pipeline(torch.utils.data.TensorDataset(torch.zeros(2)), None)


@pytest.mark.parametrize('world', [1, 2, 3, 5])
def test_ranks_share_all_samples_once(world, monkeypatch):
    loaded = []
    for rank in range(world):
        monkeypatch.setattr(features, 'get_dist_info', lambda rank=rank: (rank, world))
        for batch in features.share_of_rank(numbers(), [0, 2, 4, 6, 8, 10, 11], DataLoader([0], 2)):
            loaded += batch.tolist()
    assert sorted(loaded) == [1, 3, 5, 7, 9, 11, 12]


def test_undisturbed_restores_modes_and_random_states_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.BatchNorm1d(2)))
    model[1].eval()
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    with pytest.raises(KeyError), features.preserve_state(model):
        assert not any(module.training for module in model.modules())
        torch.rand(3), np.random.rand(3), random.random()
        raise KeyError
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all() and states[2] == random.getstate()


def test_transforms_without_chance(tmp_path):
    image = np.arange(64 * 80 * 3, dtype=np.uint8).reshape(64, 80, 3)
    path = str(tmp_path / 'a.png')
    mmcv.imwrite(image, path)
    init_default_scope('mmpretrain')
    crop = dict(type='RandomResizedCrop', scale=28)
    views = dataset.Compose([dict(type='LoadImageFromFile'),
                             dict(type='MultiView', num_views=[2], transforms=[[crop]]),
                             dict(type='PackInputs')])
    assert len(views(dict(img_path=path))['inputs']) == 2
    plain = features.plain_pipeline(views, (28, 28))
    first, again = (plain(dict(img_path=path))['inputs'] for _ in range(2))
    assert torch.equal(first, again)
    resized = mmcv.imresize(image, (40, 32))[2:30, 6:34]
    assert np.array_equal(first.numpy().transpose(1, 2, 0), resized)
    with pytest.raises(ValueError, match='begin with loading, found `MultiView`: give `pipeline`'):
        features.plain_pipeline(dataset.Compose(views.transforms[1:]), (28, 28))


@pytest.mark.parametrize('host, kind, extra', [
    ('MAE', 'SelfSup', {}), ('BEiT', 'TwoNorm', dict(second_mean=[9.] * 3, second_std=[9.] * 3))])
def test_a_self_supervised_model_sees_single_images_as_a_first_view(host, kind, extra):
    """The preprocessor of BEiT takes pairs of views alone."""
    init_default_scope('mmpretrain')
    backbone = dict(MAE=dict(type='MAEViT'), BEiT=dict(type='BEiTPretrainViT', out_type='raw',
                                                       layer_scale_init_value=0.1))[host]
    arch = dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32)
    model = MODELS.build(dict(
        type=host, backbone=dict(backbone, arch=arch, img_size=16, patch_size=8),
        data_preprocessor=dict(type=f'{kind}DataPreprocessor', mean=[1., 2., 3.], std=[4.] * 3,
                               to_rgb=True, **extra))).eval()
    images = torch.randint(0, 256, (3, 3, 16, 16)).byte()
    batch = dict(inputs=images, data_samples=[None] * 3)
    ((found, _), ) = features.feature_batches(model, [batch], 'backbone')
    shift = torch.tensor([1., 2., 3.]).view(3, 1, 1)
    with torch.no_grad():
        expected = model.backbone((images.flip(1) - shift) / 4, mask=None)[-1].mean(1)
    torch.testing.assert_close(found, expected)
