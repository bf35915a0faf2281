"""What may change when a run is resumed, and what is named."""

import copy
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config

from mmkcr.engine.resume import checkpoint_guard
from mmkcr.engine.resume.checkpoint_guard import (
    CheckpointGuardHook,
    config_changes,
    config_entries,
)

BEFORE = dict(
    default_scope='mmpretrain', work_dir='a', resume=False, load_from='x.pth',
    model=dict(type='mmkcr.SearchModel', price=dict(target=0.7), architecture=dict(
        backbone=dict(type='ViT', init_cfg=dict(type='Constant'), structure='a/structure.json'),
        head=dict(num_classes=10, topk=(1, 5)))),
    train_cfg=dict(type='mmkcr.BilevelTrainLoop', max_epochs=4, split_seed=0, val_interval=1),
    optim_wrapper=dict(weights=dict(optimizer=dict(type='AdamW', lr=1e-3), accumulative_counts=2)),
    param_scheduler=[dict(type='CosineAnnealingLR', T_max=4)],
    train_dataloader=dict(batch_size=8, num_workers=2, dataset=dict(data_root='data')),
    custom_hooks=[dict(type='mmkcr.TemperatureDecayHook', initial=4.5)],
    randomness=dict(seed=3))


def changes(**options):
    now = Config(copy.deepcopy(BEFORE))
    now.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return config_changes(config_entries(BEFORE), config_entries(now.to_dict()))


def test_what_is_the_same_run():
    assert changes() == ([], [])
    assert changes(
        work_dir='b', resume=True, load_from=None, launcher='pytorch', log_level='ERROR',
        model__architecture__backbone__init_cfg=dict(type='Pretrained', checkpoint='y.pth'),
        model__architecture__backbone__structure='moved/structure.json',
        train_dataloader__num_workers=0, train_dataloader__dataset__data_root='elsewhere',
        train_cfg__val_interval=2, model__architecture__head__topk=[1, 5]) == ([], [])


@pytest.mark.parametrize('key, value, line', [
    ('model__architecture__head__num_classes', 5,
     '`model.architecture.head.num_classes` was 10 and is 5'),
    ('model__price__target', 0.5, '`model.price.target` was 0.7 and is 0.5'),
    ('train_cfg__split_seed', 1, '`train_cfg.split_seed` was 0 and is 1'),
    ('optim_wrapper__weights__accumulative_counts', 1,
     '`optim_wrapper.weights.accumulative_counts` was 2 and is 1'),
    ('data_preprocessor', dict(mean=[1.]), '`data_preprocessor.mean` was not there and is [1.0]')])
def test_another_run(key, value, line):
    assert changes(**{key: value}) == ([line], [])


def test_entries_are_data(tmp_path):
    entries = config_entries(dict(BEFORE, custom_hooks=[dict(type=Config, among=[{3}])]))
    torch.save(entries, tmp_path / 'x.pth')
    assert torch.load(tmp_path / 'x.pth', weights_only=True) == entries
    assert entries['custom_hooks.0.type'] == 'type' and entries['custom_hooks.0.among'] == ['set']


@pytest.mark.parametrize('meta', [dict(cfg='model = 1'), None, dict(entries=['model.x'])])
def test_a_checkpoint_without_entries_is_warned_of(meta, monkeypatch):
    monkeypatch.setattr(checkpoint_guard, 'load_run', lambda *_: None)
    warnings = []
    runner = SimpleNamespace(_load_from='x.pth', _resume=True, cfg=Config(BEFORE),
                             model=torch.nn.Linear(1, 1),
                             logger=SimpleNamespace(warning=warnings.append))
    CheckpointGuardHook().after_load_checkpoint(runner, dict(
        meta=meta, optimizer={}, state_dict=dict(a=torch.ones(1))))
    assert warnings == ['The config of the run in `x.pth` cannot be compared, as the checkpoint '
                        'does not hold its entries.']


HOLDS, OTHER = "the checkpoint's is used", 'the run does not go on as it would have'


@pytest.mark.parametrize('key, value, found, end', [
    ('optim_wrapper__weights__optimizer__lr', 0.1, 'was 0.001 and is 0.1: ', HOLDS),
    ('param_scheduler__0__T_max', 8, '`param_scheduler.0.T_max` was 4 and is 8: ', HOLDS),
    ('randomness__seed', 4, '`randomness.seed` was 3 and is 4: ', HOLDS),
    ('train_cfg__max_epochs', 8, 'was 4 and is 8: ', OTHER),
    ('train_dataloader__batch_size', 4, '`train_dataloader.batch_size` was 8 and is 4: ', OTHER),
    ('custom_hooks__0__initial', 9., '`custom_hooks.0.initial` was 4.5 and is 9.0: ', OTHER),
    ('randomness__deterministic', True, 'randomness.deterministic', OTHER),
    ('optim_wrapper__weights__clip_grad', dict(max_norm=1.), 'clip_grad', OTHER),
    ('optim_wrapper__weights__optimizer__type', 'SGD', "was 'AdamW' and is 'SGD': ", OTHER),
    ('param_scheduler', [*BEFORE['param_scheduler'], dict(type='ConstantLR')], '', OTHER)])
def test_what_is_named(key, value, found, end):
    """Only what the checkpoint holds is said to be its."""
    refused, named = changes(**{key: value})
    assert not refused and named and all(line.endswith(end) for line in named)
    assert found in named[0]
