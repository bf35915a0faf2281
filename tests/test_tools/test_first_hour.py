"""What a newcomer does wrong is said as it was done; nothing is made of an untrained network."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmkcr.apis import inferencer
from mmkcr.core.checks import did_you_mean
from mmkcr.engine.build import find_weights
from mmkcr.models.sites.base import KINDS

EXPORT = 'deployment/export_onnx'


def test_the_weights_of_the_config_are_taken(run_tool, slim):
    import onnx
    from onnx import numpy_helper
    for name, *weights in (('a.onnx', ), ('b.onnx', slim / 'subnet.pth')):
        run_tool(EXPORT, slim / 'config.py', *weights, '--out', name, '--repeats', 0)
    values = [{entry.name: numpy_helper.to_array(entry).tobytes()
               for entry in onnx.load(name).graph.initializer}
              for name in ('a.onnx', 'b.onnx')]
    assert values[0] == values[1] and values[0]
    published = run_tool('publish', slim / 'config.py', '--out', 'published')
    assert 'with its structure' in published
    state = torch.load(next(Path('published').glob('*.pth')))['state_dict']
    wanted = torch.load(slim / 'subnet.pth')['state_dict']
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)
    model = inferencer(slim / 'config.py').model.state_dict()
    assert all(torch.equal(model[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize('tool', [EXPORT, 'publish', 'test'])
def test_without_weights_nothing_is_made(refused, slim, tool):
    line = refused(tool, slim / 'dense.py')
    assert 'a checkpoint, or a config with `load_from`' in line and 'untrained' in line
    with pytest.raises(ValueError, match='untrained'):
        inferencer(slim / 'dense.py')


@given(st.none() | st.text('ab', min_size=1), st.none() | st.text('cd', min_size=1))
def test_given_weights_come_before_those_of_the_config(named, own):
    config = dict(load_from=own)
    if named or own:
        assert find_weights(config, named, 'x.py') == (named or own)
    else:
        with pytest.raises(ValueError, match='`x.py` without'):
            find_weights(config, named, 'x.py')


def test_what_was_done_is_said(refused, slim, small_digits):
    dense, weights = slim / 'dense.py', slim / 'dense.pth'
    target = ('--target-macs', '60%')
    for tool in ('compress', EXPORT):
        line = refused(tool, weights, dense, *(target if tool == 'compress' else ()))
        assert f'`{dense}` in its place: they are swapped' in line
    image = next(small_digits.rglob('*.png'))
    assert f'the single file `{image}`' in refused('compress', dense, weights, *target,
                                                   '--calibration', image)
    line = refused(EXPORT, slim / 'config.py', weights)
    assert 'beside its structure, found another, as of the dense network' in line
    line = refused('compress', slim / 'config.py', slim / 'subnet.pth', *target)
    assert 'found a subnet: give the dense checkpoint and a lower target' in line
    assert 'at most 1, as `0.6` or `60%`' in refused('compress', dense, weights, '--target-macs',
                                                     '1.2')
    line = refused('compress', dense, weights, *target, '--sites', 'head_chanels', '--calibration',
                   'no/such')
    assert 'did you mean `head_channels`?' in line
    assert f'did you mean `{slim}/config.py`?' in refused('analysis_tools/get_flops',
                                                          slim / 'confg.py')
    name = 'mmkcr::kcr/digits/kcr-dense_vit-mini_1xb64_digits.py'
    line = refused('analysis_tools/get_flops', name.replace('-m', '_m'))
    assert f'did you mean `{name}`?' in line


@pytest.mark.parametrize(('tool', 'words', 'meant'), [
    ('compress', ['--target-mac', '60%'], '--target-macs'),
    ('analysis_tools/get_flops', ['--by', '2'], None),
    ('init', ['--method', 'kcrr'], 'kcr')])
def test_options_are_not_guessed(load_tool, capsys, tool, words, meant):
    """Before anything that is missing: `compress` needs a target, and a checkpoint."""
    with pytest.raises(SystemExit):
        load_tool(tool).main(['config.py', *words])
    line, = capsys.readouterr().err.splitlines()
    assert f'found `{words[0 if tool != "init" else 1]}`' in line
    assert (f'did you mean `{meant}`?' in line) == (meant is not None)


@given(st.sampled_from(sorted(KINDS)), st.data())
def test_a_slip_of_one_letter_is_understood(kind, data):
    place = data.draw(st.integers(0, len(kind) - 1))
    slip = kind[:place] + kind[place + 1:]
    meant = re.fullmatch('; did you mean `(.+)`\\?', did_you_mean(slip, KINDS))
    assert meant and meant[1] in (kind, slip)


@pytest.mark.parametrize('folder', ['/proc', '/sys'])  # where root cannot write either
def test_started_in_a_folder_that_is_read_only(load_tool, capsys, monkeypatch, slim, folder):
    monkeypatch.chdir(folder)
    args = [str(slim / 'dense.py'), str(slim / 'dense.pth'), '--target-macs', '60%']
    with pytest.raises(SystemExit) as ended:
        load_tool('compress').main(args)
    lines = [line for line in capsys.readouterr().err.splitlines() if 'error' in line.lower()]
    assert ended.value.code == 1 and len(lines) == 1
    assert re.match('error: expected a place to write for `.*`, found none: ', lines[0])
    load_tool(EXPORT).main([str(slim / 'config.py'), '--repeats', '0'])  # beside the config
    assert (slim / 'config.onnx').is_file()
