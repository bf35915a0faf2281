"""Grids over config entries."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config

from lab.grids import (
    PRESETS,
    combinations,
    parse_grid,
    preset_grid,
    resolve_path,
    with_values,
)

CONFIG = dict(
    model=dict(price=dict(weight=0.2), regularizers=dict(kcr=dict(weight=0.2, rank_ratio=0.2))),
    train_cfg=dict(max_epochs=300),
    custom_hooks=[dict(type='mmkcr.TemperatureDecayHook'),
                  dict(type='mmkcr.WarmupSwitchHook', begin=90)])


def test_the_grids_of_the_papers():
    nine = [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]
    config = Config(CONFIG)
    assert preset_grid('lambda', config) == ('model.price.weight', nine)
    assert preset_grid('eta', config) == ('model.regularizers.kcr.weight', nine)
    assert preset_grid('rank', config) == ('model.regularizers.kcr.rank_ratio', nine)
    assert preset_grid('warmup', config)[1] == [30, 60, 90, 120, 150, 180]
    assert {name: preset.fraction for name, preset in PRESETS.items()} == dict(
        eta=0.1, rank=0.2, warmup=0.1, **{'lambda': 0.1, 'eta-ib': 0.1})
    assert preset_grid('eta-ib', config) == (
        'model.regularizers.ib.weight', [0.1, 0.5, 1, 5, 10, 50, 100])


@settings(max_examples=100, deadline=None)
@given(st.integers(-50, 50), st.integers(0, 30), st.integers(1, 40), st.integers(0, 3))
def test_ranges_include_both_ends(first, count, step, digits):
    scale = 10**digits
    last = first + count * step
    _, values = parse_grid(f'a={first / scale}:{last / scale}:{step / scale}')
    assert len(values) == count + 1
    assert all(math.isclose(value, (first + i * step) / scale, abs_tol=1e-12)
               for i, value in enumerate(values))
    assert values[0] == first / scale and values[-1] == last / scale


def test_lists_and_types():
    assert parse_grid('a.b=1,0.5,true,adam') == ('a.b', [1, 0.5, True, 'adam'])
    assert parse_grid('a=1:3:1') == ('a', [1, 2, 3]) and type(parse_grid('a=1:3:1')[1][0]) is int
    assert list(combinations(dict(a=[1, 2], b=[3, 4]))) == [
        dict(a=1, b=3), dict(a=1, b=4), dict(a=2, b=3), dict(a=2, b=4)]


@pytest.mark.parametrize('text', ['', 'a', 'a=', '=1', 'a=1:2', 'a=1:2:0', 'a=2:1:1', 'a=1:x:1',
                                  'a=1:2:-1', 'a=1:2:3:4'])
def test_bad_grids(text):
    with pytest.raises(ValueError, match='expected a grid'):
        parse_grid(text)


def test_values_go_where_the_path_says():
    config = Config(CONFIG)
    path = 'custom_hooks[WarmupSwitchHook].begin'
    assert resolve_path(config, path) == 'custom_hooks.1.begin'
    changed = with_values(config, {path: 7, 'model.price.weight': 0.5})
    assert changed.custom_hooks[1].begin == 7 and changed.model.price.weight == 0.5
    assert changed.custom_hooks[0] == config.custom_hooks[0]
    assert config.custom_hooks[1].begin == 90 and config.model.price.weight == 0.2


@pytest.mark.parametrize('path, message', [
    ('model.cost.weight', 'found no `cost` among'),
    ('model.price.wait', r"found no `wait` among \['weight'\]"),
    ('custom_hooks[EMAHook].momentum', 'one `EMAHook` in `custom_hooks`'),
    ('custom_hooks.5.begin', 'found no `5` among list'),
    ('model.price.weight.more', 'found no `more` among float'),
])
def test_unknown_paths(path, message):
    with pytest.raises(ValueError, match=message):
        with_values(Config(CONFIG), {path: 1})


def test_unknown_preset():
    with pytest.raises(ValueError, match='a preset among .*, found `gamma`'):
        preset_grid('gamma', Config(CONFIG))
    with pytest.raises(ValueError, match='`train_cfg.max_epochs` for the preset `warmup`'):
        preset_grid('warmup', Config(dict(CONFIG, train_cfg=dict(max_iters=5))))
