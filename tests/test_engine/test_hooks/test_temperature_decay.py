"""TemperatureDecayHook: a function of the epoch, or of the iteration, alone."""

import pytest

from mmkcr.methods.search.gumbel import GumbelChannelGate
from mmkcr.methods.search.schedules import TemperatureDecayHook
from .kernel_toy import Watch


def gated(build, look, **overrides):
    """The toy run with a gate beside the head."""
    runner, watch = build(**overrides), Watch(look)
    runner.model.architecture.gate = GumbelChannelGate(8)
    runner.register_hook(watch)
    return runner, watch


def temperature(**kwargs):
    return [dict(type='mmkcr.TemperatureDecayHook', **kwargs)]


def test_temperature_follows_the_epoch_and_is_logged(build):
    def look(runner, _):
        logged = runner.message_hub.get_scalar('train/temperature').current()
        return runner.model.architecture.gate.temperature, logged

    inactive = [dict(type='mmkcr.WarmupSwitchHook', begin=99)]
    runner, watch = gated(build, look, hooks=temperature(decay=0.5, minimum=1.5) + inactive)
    runner.train()
    expected = {0: 4.5, 1: 2.25, 2: 1.5}
    assert len(watch.seen) == 18
    for epoch, (value, logged) in watch.seen:
        assert value == pytest.approx(expected[epoch]) == logged


def test_temperature_of_any_epoch_needs_no_history():
    hook = TemperatureDecayHook()
    assert hook.temperature(0) == 4.5
    assert hook.temperature(200) == pytest.approx(max(1e-3, 4.5 * 0.95**200))
    values = [hook.temperature(epoch) for epoch in range(300)]
    assert values == sorted(values, reverse=True) and min(values) >= 1e-3
    # log-linear, as in differentiable subset pruning
    hook = TemperatureDecayHook(initial=1., minimum=1e-3, until=30)
    for epoch in range(40):
        assert hook.temperature(epoch) == pytest.approx(1e-3**min(epoch / 30, 1))


def test_temperature_follows_the_iteration(build):
    runner, watch = gated(
        build, lambda runner, _: (runner.iter, runner.model.architecture.gate.temperature),
        hooks=temperature(decay=0.5, interval=2, by_epoch=False) + [
            dict(type='mmkcr.WarmupSwitchHook', begin=99, by_epoch=False)],
        train_cfg=dict(by_epoch=False, max_iters=6, val_interval=99))
    runner.train()
    assert [value for _, value in watch.seen] == [
        (i, 4.5 * 0.5**(i // 2)) for i in range(6)]


@pytest.mark.parametrize('hook', ['TemperatureDecayHook', 'WarmupSwitchHook',
                                  'NystromRefreshHook'])
def test_epochs_are_refused_where_there_are_none(build, hook):
    runner, _ = gated(build, lambda *_: None, hooks=[dict(type=f'mmkcr.{hook}')],
                      train_cfg=dict(by_epoch=False, max_iters=2))
    with pytest.raises(ValueError, match=f'`by_epoch=False` of {hook} in a run of '
                                         '`IterBasedTrainLoop`, found `by_epoch=True`'):
        runner.train()


def test_a_model_without_gates_is_refused(build):
    with pytest.raises(ValueError, match='at least one gate'):
        build(hooks=temperature()).train()


@pytest.mark.parametrize('kwargs', [dict(initial=0), dict(decay=0), dict(decay=1.1),
                                    dict(until=0), dict(until=3, decay=0.5),
                                    dict(minimum=0), dict(minimum=5), dict(interval=0)])
def test_bad_schedules_are_refused(kwargs):
    with pytest.raises(ValueError, match='in TemperatureDecayHook'):
        TemperatureDecayHook(**kwargs)
