"""Scaling a schedule's length and rates, in every form that the hosts' configs have."""

import pytest
from mmengine.config import Config

from mmkcr.apis.slim_files import write_finetune_config
from mmkcr.core import Structure
from mmkcr.engine.build import load_config
from mmkcr.engine.schedule import scale_rates, stretch_schedule

MASK2FORMER = 'mmdet::mask2former/mask2former_swin-t-p4-w7-224_8xb2-lsj-50e_coco.py'


def test_one_scheduler_that_is_no_list():
    """As in mmpretrain's ResNet and mmdet's Mask2Former."""
    config = load_config('mmpretrain::resnet/resnet50_8xb32_in1k.py')
    stretch_schedule(config, 0.1)
    assert (config.train_cfg.max_epochs, config.param_scheduler.milestones) == (10, [3, 6, 9])
    config.param_scheduler = dict(type='CosineAnnealingLR', T_max=100, eta_min=1e-5, end=100)
    stretch_schedule(config, 0.1)
    scale_rates(config, 0.1)
    assert (config.param_scheduler.T_max, config.param_scheduler.end) == (10, 10)
    assert abs(config.param_scheduler.eta_min - 1e-6) < 1e-12


def test_lists_of_each_optimizer():
    config = Config(dict(train_cfg=dict(max_epochs=10), custom_hooks=None, param_scheduler=dict(
        weights=[dict(type='LinearLR', end=2)], architecture=dict(type='StepLR', begin=2, end=10))))
    stretch_schedule(config, 0.5)
    found = config.param_scheduler
    assert (found.weights[0].end, found.architecture.begin, found.architecture.end) == (1, 1, 5)


def test_steps_and_powers_decay_as_much_in_all():
    """Of mmpretrain's MobileNets: a factor in every epoch or every second one."""
    for name, epochs in (('mobilenet_v2/mobilenet-v2_8xb32_in1k', 30),
                         ('mobilenet_v3/mobilenet-v3-small_8xb128_in1k', 60)):
        config = load_config(f'mmpretrain::{name}.py')
        schedule = config.param_scheduler
        whole = schedule.gamma**(config.train_cfg.max_epochs / schedule.step_size)
        stretch_schedule(config, 0.1)
        assert (schedule.step_size, config.train_cfg.max_epochs) == (1, epochs)
        assert schedule.gamma**config.train_cfg.max_epochs == pytest.approx(whole)
    config = Config(dict(train_cfg=dict(max_epochs=100), param_scheduler=[
        dict(type='StepLR', step_size=30), dict(type='ExponentialLR', gamma=0.9),
        dict(type='CosineRestartLR', periods=[40, 60], restart_weights=[1, 1]),
        dict(type='OneCycleLR', eta_max=1., total_steps=100)]))
    stretch_schedule(config, 0.1)
    step, power, restart, cycle = config.param_scheduler
    assert step == dict(type='StepLR', step_size=3) and power.gamma == pytest.approx(0.9**10)
    assert (restart.periods, cycle.total_steps) == ([4, 6], 10)


def test_the_end_of_a_shortened_run_is_validated(tmp_path):
    """Of mmdet's Mask2Former: an interval as long as the run holds from some iteration on."""
    config = load_config(MASK2FORMER)
    assert config.train_cfg.dynamic_intervals == [(365001, 368750)]
    structure = Structure(dict(type='mmkcr.Searchable', sites=['mlp_hidden']), {})
    path = write_finetune_config(config, 'dense.pth', structure, tmp_path, 3000)
    found = load_config(path, compressed=False).train_cfg
    assert (found.max_iters, found.val_interval) == (3000, 3000)
    assert [tuple(step) for step in found.dynamic_intervals] == [(2969, 3000)]


def test_hooks_that_switch_near_the_end():
    """RTMDet's last 20 epochs of 300 with weak augmentation, and mmpretrain's recipes."""
    config = load_config('mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py')
    stretch_schedule(config, 0.1)
    switch = next(hook for hook in config.custom_hooks if hook.type == 'PipelineSwitchHook')
    assert (config.train_cfg.max_epochs, switch.switch_epoch) == (30, 28)
    assert config.train_cfg.dynamic_intervals == [(28, 1)]
    config = Config(dict(train_cfg=dict(max_epochs=120, val_begin=75), custom_hooks=[
        dict(type='SwitchRecipeHook', schedule=[dict(action_epoch=37), dict(action_epoch=112)]),
        dict(type='YOLOXModeSwitchHook', num_last_epochs=15),
        dict(type='EMAHook', begin_epoch=0)]))
    stretch_schedule(config, 1 / 12)
    recipes, last, average = config.custom_hooks
    assert [step.action_epoch for step in recipes.schedule] == [3, 9]
    assert (last.num_last_epochs, average.begin_epoch, config.train_cfg.val_begin) == (1, 0, 6)


def test_what_began_before_the_end_still_does():
    """Of a run of one epoch, and of the constant rate at the end of mmdet's YOLOX."""
    def config(begin):
        return Config(dict(
            train_cfg=dict(max_epochs=20), param_scheduler=[
                dict(type='CosineAnnealingLR', begin=0, T_max=19, end=19),
                dict(type='ConstantLR', begin=19, end=20)],
            custom_hooks=[dict(type='mmkcr.WarmupSwitchHook', begin=begin)]))

    for epochs, begin, (cosine, constant) in ((1, 0, (1, 0)), (2, 1, (2, 1)), (10, 9, (10, 9))):
        found = config(18)
        stretch_schedule(found, epochs / 20)
        assert found.custom_hooks[0].begin == begin
        assert (found.param_scheduler[0].end, found.param_scheduler[1].begin,
                found.param_scheduler[1].end) == (cosine, constant, epochs)
    found = config(20)  # it never began
    stretch_schedule(found, 0.5)
    assert found.custom_hooks[0].begin == 10
    yolox = load_config('mmdet::yolox/yolox_tiny_8xb8-300e_coco.py')
    stretch_schedule(yolox, 0.01)
    assert all(part.begin < part.end <= 3 for part in yolox.param_scheduler)
