"""Runs that stop after they began: a sentence, and the last good checkpoint stays the last one."""

import errno
import re
import shutil
from pathlib import Path

import pytest
import torch

from mmkcr.engine.build import build_model
from mmkcr.engine.resume.checkpoints import AtomicLocalBackend
from mmkcr.methods.search.price import MacsPrice

EVERY = """
default_hooks = dict(
    checkpoint=dict(interval=2, by_epoch=False, max_keep_ckpts=1), logger=dict(interval=1))
custom_hooks.append(dict(type='EMAHook'))
train_dataloader['dataset'].update(indices=list(range(0, 1437, 16)))
val_dataloader['dataset'].update(indices=4)
"""


@pytest.fixture
def stopped(load_tool, write_config, capsys, tmp_path, forget_runs):
    """``stopped(*arguments, lines='')``: the sentence with which a training ends."""

    def run(*arguments, lines=EVERY):
        forget_runs()
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            load_tool('train').main([write_config(lines), '--work-dir', str(tmp_path / 'run'),
                                     *arguments])
        (line, ) = [line for line in capsys.readouterr().err.splitlines()
                    if line.startswith('error: ')]
        assert ended.value.code == 1
        return line

    return run


def checkpoints(folder):
    return {path.name: torch.load(path, weights_only=False)['meta']['iter']
            for path in folder.glob('*.pth')}


def test_a_loss_that_is_none(stopped, monkeypatch, tmp_path):
    """The price, from the fifth iteration on; other losses: test_finite.py and test_bilevel.py."""
    good, calls = MacsPrice.forward, []

    def bad(self, *args, **kwargs):
        calls.append(1)
        factor = float('nan') if len(calls) > 8 else 1.  # two calls an iteration
        return {key: value * factor if 'loss' in key else value
                for key, value in good(self, *args, **kwargs).items()}

    monkeypatch.setattr(MacsPrice, 'forward', bad)
    line = stopped()
    assert re.search(r'the run stopped: expected finite .* at iteration 5, found nan in `\w*/?'
                     'loss_price', line), line
    assert checkpoints(tmp_path / 'run') == {'iter_4.pth': 4}
    assert (tmp_path / 'run/last_checkpoint').read_text().endswith('iter_4.pth')


def test_weights_that_are_none(stopped, monkeypatch, tmp_path):
    """Losses are finite, but what is to be saved is not."""
    good = torch.optim.AdamW.step

    def step(self, *args, **kwargs):
        found = good(self, *args, **kwargs)
        parameter = self.param_groups[0]['params'][0]
        if self.state[parameter].get('step') == 4:
            parameter.data.flatten()[0] = float('nan')
        return found

    monkeypatch.setattr(torch.optim.AdamW, 'step', step)
    assert re.search('the run stopped: expected finite', stopped())
    assert checkpoints(tmp_path / 'run') == {'iter_2.pth': 2}


def test_a_disk_that_is_full_in_the_middle(stopped, monkeypatch, tmp_path):
    put, calls = AtomicLocalBackend.put, []

    def full(self, content, path):
        calls.append(path)
        if len(calls) > 2:
            raise OSError(errno.ENOSPC, 'No space left on device', str(path))
        put(self, content, path)

    monkeypatch.setattr(AtomicLocalBackend, 'put', full)
    assert 'the run stopped: [Errno 28] No space left on device' in stopped()
    assert checkpoints(tmp_path / 'run') == {'iter_2.pth': 2}


@pytest.mark.parametrize('content, workers, step', [
    (b'', 0, 20), (b'no image', 1, 20), (b'no image', 1, 1)])
def test_an_image_that_cannot_be_read_is_named(stopped, small_digits, tmp_path, content, workers,
                                               step):
    """Also in the first batch, before the run has begun."""
    data = tmp_path / 'digits'
    shutil.copytree(small_digits, data, ignore=shutil.ignore_patterns('scenes'))
    images = sorted((data / 'train').rglob('*.png'))
    for path in images[::step]:
        path.write_bytes(content)
    line = stopped('--cfg-options', f'train_dataloader.dataset.data_root={data}',
                   f'train_dataloader.num_workers={workers}', lines='')
    assert line.startswith('error: expected samples that can be loaded, found one that cannot: ')
    (found, ) = re.findall(r'that can be read at `(\S+)`, found none', line)
    assert Path(found) in images[::step] and not checkpoints(tmp_path / 'run')


@pytest.mark.parametrize('kept, found', [(0, 'none'), (3, '3')])
def test_weights_of_another_backbone_begin_no_training(dense_training, refused, tmp_path, kept,
                                                       found):
    """Keys of a bare backbone, and of one that shares a few names."""
    config = dense_training()
    config.dump(tmp_path / 'dense.py')
    state = build_model(config).state_dict()
    names = [name for name in state if name.startswith('backbone.')]
    torch.save({name.removeprefix('' if name in names[:kept] else 'backbone.'): value
                for name, value in state.items()}, tmp_path / 'others.pth')
    line = refused('train', tmp_path / 'dense.py', '--cfg-options',
                   f'load_from={tmp_path / "others.pth"}')
    assert f'found {found} of its {len(names)} entries' in line or 'missing' in line
