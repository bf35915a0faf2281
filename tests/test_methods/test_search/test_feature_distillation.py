"""Distance of a subnet's maps from its teacher's, against NumPy; zero for the teacher itself."""

import copy

import numpy as np
import pytest
import torch

from mmkcr.methods.search.regularized import RegularizedModel

BACKBONE = dict(
    type='mmpretrain.SwinTransformer', img_size=32, window_size=4, patch_size=4, drop_path_rate=0.,
    arch=dict(embed_dims=16, depths=[1, 1], num_heads=[2, 2]), out_indices=(0, 1),
    pad_small_map=True)
MODEL = dict(
    type='mmpretrain.ImageClassifier', backbone=BACKBONE,
    neck=dict(type='mmpretrain.GlobalAveragePooling'),
    head=dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=32),
    data_preprocessor=dict(type='mmpretrain.ClsDataPreprocessor', mean=[0.] * 3, std=[1.] * 3))


@pytest.fixture
def student(tmp_path):
    from mmpretrain.registry import MODELS
    torch.manual_seed(0)
    teacher = MODELS.build(copy.deepcopy(MODEL))
    torch.save(dict(state_dict=teacher.state_dict()), tmp_path / 'dense.pth')
    config = copy.deepcopy(MODEL)
    model = RegularizedModel(config, dict(teacher=dict(
        type='mmkcr.FeatureDistillationLoss', teacher=config, weight=0.5,
        checkpoint=str(tmp_path / 'dense.pth'))))
    return model, teacher.train(False)


def loss_of(model, images):
    from mmpretrain.structures import DataSample
    samples = [DataSample().set_gt_label(i % 3) for i in range(len(images))]
    return model(images, samples, mode='loss')


def test_is_the_formula_and_zero_for_the_teacher_itself(student):
    model, teacher = student
    images = torch.randn(4, 3, 32, 32)
    losses = loss_of(model, images)
    assert set(losses) == {'loss', 'loss_teacher'}
    with torch.no_grad():
        ours, theirs = ([out.double().numpy() for out in network(images)]
                        for network in (model.architecture.backbone, teacher.backbone))
    expected = 0.5 * np.mean([((a - b)**2).sum() / (b**2).sum() for a, b in zip(ours, theirs)])
    assert losses['loss_teacher'].item() == pytest.approx(expected, rel=1e-5)
    losses['loss_teacher'].backward()
    missing = [name for name, parameter in model.architecture.backbone.named_parameters()
               if parameter.grad is None]
    assert not missing
    model.architecture.load_state_dict(teacher.state_dict())
    assert loss_of(model, images)['loss_teacher'].item() == 0
    assert not [name for name in model.state_dict() if 'teacher' in name]


def test_other_shapes_and_weights_are_refused(student):
    model, _ = student
    config = copy.deepcopy(MODEL)
    config['backbone']['out_indices'] = (1, )
    other = RegularizedModel(model.architecture, dict(teacher=dict(
        type='mmkcr.FeatureDistillationLoss', teacher=config)))
    with pytest.raises(ValueError, match="expected maps of the teacher's shapes"):
        loss_of(other, torch.randn(2, 3, 32, 32))
    with pytest.raises(ValueError, match='non-negative `weight` .* found -1'):
        RegularizedModel(model.architecture, dict(teacher=dict(
            type='mmkcr.FeatureDistillationLoss', teacher=config, weight=-1)))
