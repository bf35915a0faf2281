"""Files that are data run no code: checkpoints, configs within them, YAML."""

import os
import pickle
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from mmdet.apis import DetInferencer
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.runner.checkpoint import CheckpointLoader
from mmseg.apis import MMSegInferencer

from mmkcr.engine.build import load_config
from mmkcr.safe_load import read_checkpoint, trust_checkpoints


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path), )


@pytest.fixture
def trap(tmp_path):
    """A folder that is there once code has run."""
    path = tmp_path / 'ran'
    yield path
    trust_checkpoints(False)


def save(path, extra, legacy=False):
    content = dict(state_dict=dict(weight=torch.ones(2)), meta=dict(epoch=1, extra=extra))
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.mark.parametrize('legacy', [False, True])
@pytest.mark.parametrize('read', [read_checkpoint, CheckpointLoader.load_checkpoint])
@pytest.mark.parametrize('around', [list, lambda touch: Namespace(x=touch[0])])
def test_code_is_refused_by_name(trap, tmp_path, read, legacy, around):
    """By MMEngine's own reader too, of a run of ours: inferencers and ``Pretrained`` use it."""
    path = save(tmp_path / 'bad.pth', around([Touch(trap)]), legacy)
    with pytest.raises(ValueError, match=r'needs `posix.mkdir` to be read; `--trust-checkpoint`'):
        read(str(path))
    assert not trap.exists()


def test_trusted_code_runs(trap, tmp_path, monkeypatch):
    path = save(tmp_path / 'mine.pth', Touch(trap))
    trust_checkpoints()
    assert read_checkpoint(path)['meta']['epoch'] == 1 and trap.exists()
    trust_checkpoints(False)
    trap.rmdir()
    monkeypatch.setenv('MMKCR_TRUST_CHECKPOINT', '1')
    read_checkpoint(path)
    assert trap.exists()


def test_getattr_reaches_nothing(tmp_path, trap):
    """MMEngine's list of what is harmless holds ``getattr``, which reaches everything."""

    class Reach:
        def __reduce__(self):
            return getattr, (HistoryBuffer, '__init__')

    with pytest.raises(ValueError, match='getattr'):
        read_checkpoint(save(tmp_path / 'bad.pth', Reach()))


def test_bare_pickles_are_no_checkpoints(trap, tmp_path):
    (tmp_path / 'bad.pth').write_bytes(pickle.dumps(Touch(trap)))
    with pytest.raises(ValueError, match='expected a checkpoint at'):
        read_checkpoint(tmp_path / 'bad.pth')
    assert not trap.exists()


def test_what_runs_write_is_read(tmp_path):
    """Logs and the numbers of NumPy: what MMEngine puts beside weights."""
    history = HistoryBuffer([1., 2.], [1, 1])
    extra = dict(log=history, number=np.float64(3.), array=np.arange(3), flag=np.bool_(True))
    found = read_checkpoint(save(tmp_path / 'run.pth', extra))['meta']['extra']
    assert found['log'].mean() == 1.5 and found['number'] == 3 and found['flag']
    assert found['array'].tolist() == [0, 1, 2]


@pytest.mark.parametrize('legacy', [False, True])
@pytest.mark.parametrize('extra', [
    Namespace(model='vit', output=Path('runs'), warmup=Namespace(epochs=5)),
    ConfigDict(optimizer=dict(lr=1e-3))], ids=lambda extra: type(extra).__name__)
def test_options_of_other_trainings_are_read(tmp_path, extra, legacy):
    """DeiT, MAE and DINO write their command line beside the weights."""
    assert read_checkpoint(save(tmp_path / 'run.pth', extra, legacy))['meta']['extra'] == extra


def with_config(path, text):
    """A file of text and tensors, as a run writes it; the hosts' inferencers read its config."""
    torch.save(dict(state_dict=dict(weight=torch.ones(2)), meta=dict(cfg=text, config=text),
                    message_hub=dict(log_scalars={}, runtime_info=dict(cfg=text),
                                     resumed_keys={})), path)
    return str(path)


@pytest.mark.parametrize('text', [
    'import os\nos.mkdir({trap!r})', '_base_ = {base!r}', 'model = dict(type="ViT")',
    'custom_imports = dict(imports=["trap_module"])\nmodel = dict(type="ViT")'])
@pytest.mark.parametrize('infer', [
    lambda weights: DetInferencer(weights=weights),
    lambda weights: MMSegInferencer(None, weights=weights)])
def test_no_config_of_a_checkpoint_is_used(trap, tmp_path, monkeypatch, infer, text):
    """Once `prepare_hosts` was called, as by every command and by `mmkcr.apis.inferencer`."""
    base = tmp_path / 'base.py'
    base.write_text(f'import os\nos.mkdir({str(trap)!r})')
    base.with_name('trap_module.py').write_text(base.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    text = text.format(trap=str(trap), base=str(base))
    path = with_config(tmp_path / 'run.pth', text)
    with pytest.raises((ValueError, AssertionError)):
        infer(path)
    assert not trap.exists()
    content = CheckpointLoader.load_checkpoint(path)
    assert content['meta'] == content['message_hub']['runtime_info'] == {}
    with pytest.raises(ValueError, match='its config and `--trust-checkpoint`, found'):
        load_config(path)
    trust_checkpoints()
    assert CheckpointLoader.load_checkpoint(path)['meta']['cfg'] == text
    assert not text.startswith('model') or load_config(path).model.type == 'ViT'


def test_yaml_makes_no_objects(trap, tmp_path):
    path = tmp_path / 'config.yml'
    for text in (f'model: !!python/object/apply:os.mkdir [{str(trap)!r}]\n', 'a: [1, \nb: }'):
        path.write_text(text)
        with pytest.raises(ValueError, match='a config at .*, found one that cannot be read'):
            load_config(str(path))
    assert not trap.exists()
    path.write_text('model: {type: ViT, depth: 3}\n')
    assert load_config(str(path)).model.depth == 3


def test_a_download_that_fails_says_so(monkeypatch, tmp_path):
    """And not that the file is damaged."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r'download .* from `http://127.0.0.1:9/x.pth`'):
        CheckpointLoader.load_checkpoint('http://127.0.0.1:9/x.pth')
