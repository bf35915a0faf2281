"""WarmupSwitchHook: a function of the epoch, or of the iteration, alone."""

import pytest

from mmkcr.methods.search.schedules import WarmupSwitchHook
from .kernel_toy import Watch


def run(build, look, **overrides):
    runner, watch = build(**overrides), Watch(look)
    runner.register_hook(watch)
    runner.train()
    return watch.seen


def hooks(begin):
    return [dict(type='mmkcr.NystromRefreshHook'), dict(type='mmkcr.WarmupSwitchHook', begin=begin)]


@pytest.mark.parametrize('begin', [0, 1, 3])
def test_the_loss_is_in_the_log_from_the_first_epoch_after_warmup(build, tmp_path, begin):
    seen = run(build, lambda runner, outputs: bool(outputs['loss_kcr']), hooks=hooks(begin),
               log_level='WARNING')
    log = ''.join(path.read_text() for path in tmp_path.rglob('*.log'))
    never = 'kcr: the term begins in epoch 3 (from 0) of a run of 3, so it is never on'
    assert (never in log) == (begin == 3)
    assert [epoch for epoch, _ in seen] == [0] * 6 + [1] * 6 + [2] * 6
    assert all(on == (epoch >= begin) for epoch, on in seen)  # epoch + 1 > t_warm


def test_a_resumed_run_switches_at_the_same_epoch(build, tmp_path):
    run(build, lambda *_: None, hooks=hooks(1))
    seen = run(build, lambda runner, outputs: bool(outputs['loss_kcr']), hooks=hooks(1),
               resume=True, load_from=str(tmp_path / 'epoch_1.pth'))
    assert seen == [(1, True)] * 6 + [(2, True)] * 6


def test_switches_at_an_iteration(build):
    hooks = [dict(type='mmkcr.NystromRefreshHook', by_epoch=False),
             dict(type='mmkcr.WarmupSwitchHook', begin=4, by_epoch=False)]
    seen = run(build, lambda runner, outputs: (runner.iter, bool(outputs['loss_kcr'])), hooks=hooks,
               train_cfg=dict(by_epoch=False, max_iters=6, val_interval=99))
    assert [value for _, value in seen] == [(i, i >= 4) for i in range(6)]


def test_several_names_and_bad_ones(build):
    with pytest.raises(ValueError, match='found `-1` in WarmupSwitchHook'):
        WarmupSwitchHook(begin=-1)
    assert WarmupSwitchHook(losses='kcr').losses == ('kcr', )
    with pytest.raises(ValueError, match=r"\['kcr'\] of RegularizedModel, found `ib`"):
        run(build, lambda *_: None, hooks=[dict(type='mmkcr.WarmupSwitchHook', losses=('ib', ))])
