"""DistillationLoss inside RegularizedModel, with real mmpretrain classifiers."""

import copy
import random
from uuid import uuid4

import mmseg.models  # noqa: F401
import numpy as np
import pytest
import torch
from mmengine.model import ExponentialMovingAverage
from mmengine.registry import DefaultScope
from mmpretrain.structures import DataSample

from mmkcr.methods.search.teachers import Teacher
from mmkcr.registry import MODELS

VIT = dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32)


@pytest.fixture(autouse=True)
def _scope():
    # a name of its own, as of several scopes the latest is the current one
    DefaultScope.get_instance(f'test {uuid4()}', scope_name='mmpretrain')


def classifier(classes=5, **kwargs):
    return dict(
        type='ImageClassifier',
        backbone=dict(type='VisionTransformer', arch=VIT, img_size=16, patch_size=8),
        head=dict(type='VisionTransformerClsHead', num_classes=classes, in_channels=16,
                  cal_acc=False), **kwargs)


STUDENT = dict(mean=[10., 20., 30.], std=[2., 3., 4.], to_rgb=True, num_classes=5)
TEACHER = dict(type='ImageClassifier', backbone=dict(type='ResNet', depth=18),
               neck=dict(type='GlobalAveragePooling'),
               head=dict(type='LinearClsHead', num_classes=5, in_channels=512),
               data_preprocessor=dict(mean=[100.] * 3, std=[50.] * 3, to_rgb=False))


def build(student=STUDENT, augments=None, more=None, **kwargs):
    train_cfg = None if augments is None else dict(augments=augments)
    term = dict(type='mmkcr.DistillationLoss', teacher=TEACHER, **kwargs)
    return MODELS.build(dict(
        type='mmkcr.RegularizedModel', regularizers=dict(kd=term, **(more or {})),
        architecture=classifier(train_cfg=train_cfg, data_preprocessor=dict(student))))


def batch(n=4):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return dict(inputs=images, data_samples=[DataSample().set_gt_label(i % 5) for i in range(n)])


def softmax(x):
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


@pytest.mark.parametrize('temperature, weight', [(1., 1.), (4., 0.5)])
@pytest.mark.parametrize('to_rgb', [True, False])
def test_value_is_the_naive_one_on_the_images_as_the_teacher_wants_them(temperature, weight,
                                                                        to_rgb):
    model = build(dict(STUDENT, to_rgb=to_rgb), temperature=temperature, weight=weight)
    data, term = batch(), model.regularizers['kd']
    losses = model(**model.data_preprocessor(copy.deepcopy(data), True), mode='loss')
    with torch.no_grad():
        student = model.architecture(model.data_preprocessor(data)['inputs']).numpy()
        teacher = term.teacher.model(torch.device('cpu'))
        expected = teacher((data['inputs'].float() - 100.) / 50.).double().numpy()
    p, q = softmax(expected / temperature), softmax(student.astype(float) / temperature)
    naive = weight * temperature**2 * np.mean((p * np.log(p / q)).sum(1))
    assert float(losses['loss_kd'].detach()) == pytest.approx(naive, rel=1e-4)
    assert float(losses['kd_agreement']) == (expected.argmax(1) == student.argmax(1)).mean()
    assert 'loss' in losses  # that on the labels


@pytest.mark.parametrize('augments', [dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.)])
def test_the_teacher_sees_mixed_images_and_other_regularisers_stand_beside_it(augments):
    ib = dict(type='mmkcr.InformationBottleneckLoss', num_features=16, num_classes=5)
    model = build(augments=[augments], more=dict(ib=ib))
    term = model.regularizers['ib']
    term.refresh(torch.randn(5, 16), torch.randn(5, 5).log_softmax(1))
    seen = []
    model.regularizers['kd'].teacher.model(torch.device('cpu')).register_forward_pre_hook(
        lambda module, args: seen.append(args[0]))
    np.random.seed(0)
    data = model.data_preprocessor(batch(), True)
    losses = model(**data, mode='loss')
    mean, std = (torch.tensor(STUDENT[key]).view(-1, 1, 1) for key in ('mean', 'std'))
    mixed = (data['inputs'] * std + mean).flip(1)
    assert torch.allclose(seen[0], (mixed - 100.) / 50., atol=1e-4)
    original = (batch()['inputs'].float() - 100.) / 50.
    assert (seen[0] - original).abs().max() > 0.1
    scores = torch.stack([sample.gt_score for sample in data['data_samples']])
    assert ((scores > 0).sum(1) == 2).any()
    features = model.architecture.backbone(data['inputs'])[-1]
    assert float(losses['loss_ib']) == pytest.approx(float(term(features, scores)), rel=1e-4)
    assert {'loss', 'loss_kd', 'loss_ib'} <= set(losses)


def test_the_teacher_is_frozen_shared_and_in_no_checkpoint():
    model = build()
    model.train()
    total, _ = model.parse_losses(model(**model.data_preprocessor(batch(), True), mode='loss'))
    total.backward()
    teacher = model.regularizers['kd'].teacher.model(torch.device('cpu'))
    assert not any(module.training for module in teacher.modules())
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert all(p.grad is not None for p in model.parameters())
    assert set(model.state_dict()) == set(model.architecture.state_dict())
    average = ExponentialMovingAverage(model)
    assert average.module.regularizers['kd'].teacher.model(torch.device('cpu')) is teacher


def test_checkpoint_and_config_file_of_the_teacher(tmp_path):
    teacher = MODELS.build(TEACHER)
    torch.save(dict(state_dict=teacher.state_dict()), tmp_path / 'teacher.pth')
    (tmp_path / 'teacher.py').write_text(f"default_scope = 'mmpretrain'\nmodel = {TEACHER}\n")
    for config in (str(tmp_path / 'teacher.py'), TEACHER):
        term = build(checkpoint=str(tmp_path / 'teacher.pth')).regularizers['kd']
        term.teacher.config = config
        loaded = term.teacher.model(torch.device('cpu'))
        assert all(torch.equal(value, loaded.state_dict()[key])
                   for key, value in teacher.state_dict().items())


def test_the_teacher_has_a_size_of_its_own():
    model = build(input_size=64)
    images = model.regularizers['kd'].pixels(model.data_preprocessor(batch())['inputs'])
    assert images.shape == (4, 3, 64, 64)
    flat = torch.full((1, 3, 16, 16), 0.5)
    expected = torch.tensor([0.5 * 4 + 30, 0.5 * 3 + 20, 0.5 * 2 + 10])  # BGR
    assert torch.allclose(model.regularizers['kd'].pixels(flat).mean((0, 2, 3)), expected)


SEGMENTOR = dict(
    type='EncoderDecoder', data_preprocessor=dict(type='SegDataPreProcessor'),
    backbone=dict(type='ResNetV1c', depth=18, norm_cfg=dict(type='BN')),
    decode_head=dict(type='FCNHead', in_channels=512, in_index=3, channels=8, num_classes=3,
                     norm_cfg=dict(type='BN')))


@pytest.mark.parametrize('scope, config', [
    ('mmpretrain', TEACHER), ('mmseg', SEGMENTOR), ('mmengine', TEACHER)])
@pytest.mark.parametrize('as_file', [False, True])
def test_the_first_use_changes_neither_random_states_nor_scope(tmp_path, scope, config, as_file):
    """A resumed search builds its teacher at another iteration, and draws the same noise."""
    if as_file:
        library = 'mmseg' if config is SEGMENTOR else 'mmpretrain'
        (tmp_path / 'teacher.py').write_text(f'default_scope = {library!r}\nmodel = {config}\n')
        config, scope = str(tmp_path / 'teacher.py'), 'mmdet'
    DefaultScope.get_instance(f'test {uuid4()}', scope_name=scope)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    built = Teacher(config, None).model(torch.device('cpu'))
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all() and states[2] == random.getstate()
    assert DefaultScope.get_current_instance().scope_name == scope
    assert type(built).__name__ in ('EncoderDecoder', 'ImageClassifier')


def test_refusals(tmp_path):
    def loss(model):
        return model(**model.data_preprocessor(batch(), True), mode='loss')

    with pytest.raises(FileNotFoundError, match='expected a checkpoint at'):
        loss(build(checkpoint=str(tmp_path / 'none.pth')))
    other = MODELS.build(classifier())
    torch.save(other.state_dict(), tmp_path / 'other.pth')
    with pytest.raises(ValueError, match='checkpoint of the ImageClassifier in .*other.pth'):
        loss(build(checkpoint=str(tmp_path / 'other.pth')))
    model = build()
    model.regularizers['kd'].teacher.config = classifier(classes=7)
    with pytest.raises(ValueError, match='a teacher of 5 classes, found `7`'):
        loss(model)
    with pytest.raises(ValueError, match='a positive `temperature` .* found 0 and 1'):
        build(temperature=0, weight=1)
