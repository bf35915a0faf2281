"""Killed at any moment of saving, a run has a complete checkpoint to go on from."""

import os
import signal
from pathlib import Path

import pytest
import torch
from mmengine.hooks import CheckpointHook
from mmengine.runner import find_latest_checkpoint

from long_form import few
from mmkcr.engine.registered import AtomicCheckpointHook, ExactResumeHook
from mmkcr.engine.resume.atomic_checkpoint import AtomicLocalBackend, write_atomically

OPTIONS = {
    'train_cfg.max_iters': 9, 'train_cfg.val_interval': 4,
    'train_dataloader.num_workers': 0, 'train_dataloader.persistent_workers': False,
    'default_hooks.checkpoint.interval': 3, 'default_hooks.checkpoint.max_keep_ckpts': 1,
    'default_hooks.checkpoint.save_best': 'accuracy/top1',
}
# renamings: checkpoint 3 and its pointer, best of 4, checkpoint 4 and its pointer,
# checkpoint 6 and its pointer, ...
KILLS = few((2, 3, 4, 7), 3, 4)


@pytest.fixture(scope='module')
def killed(run_jobs, tmp_path_factory):
    """An unbroken run; for every kill what it left, and the resumed run's directory."""
    root = tmp_path_factory.mktemp('killed')
    base = dict(kind='iterations', options=OPTIONS)
    dirs = {kill: str(root / str(kill)) for kill in KILLS}
    statuses = run_jobs([dict(base, work_dir=str(root / 'unbroken')),
                         *(dict(base, work_dir=path, kill_rename=kill)
                           for kill, path in dirs.items())])
    assert statuses == [0] + [-signal.SIGKILL] * len(KILLS)
    left = {kill: find_latest_checkpoint(path) for kill, path in dirs.items()}
    readable = {kill: path is None or 'optimizer' in torch.load(path, weights_only=False)
                for kill, path in left.items()}
    assert run_jobs([dict(base, work_dir=path, resume=True)
                     for path in dirs.values()]) == [0] * len(KILLS)
    return root, left, readable


def test_pointer_is_to_a_complete_checkpoint(killed):
    _, left, readable = killed
    assert all(readable.values())
    names = {kill: path and Path(path).name for kill, path in left.items()}
    assert names == {kill: {2: None, 3: 'iter_3.pth', 4: 'iter_3.pth', 7: 'iter_4.pth'}[kill]
                     for kill in KILLS}


@pytest.mark.parametrize('kill', KILLS)
def test_resumed_run_is_the_unbroken_one(killed, same_runs, kill):
    same_runs(killed[0] / 'unbroken', killed[0] / str(kill))


def test_only_what_is_asked_for_is_kept(killed):
    files = {path.name for path in (killed[0] / 'unbroken').glob('*.pt*')}
    assert 'iter_9.pth' in files and len(files) == 2
    assert [name for name in files if name.startswith('best_')]


def test_old_content_stays_until_the_new_is_complete(tmp_path, monkeypatch):
    path = tmp_path / 'file'
    AtomicLocalBackend().put(b'old', path)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, 'fsync', interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(b'new', path)
    assert path.read_bytes() == b'old'


def test_plain_checkpoint_hook_becomes_atomic_and_others_stay():
    class Own(CheckpointHook):
        pass

    class Runner:
        hooks = [CheckpointHook(), Own()]

        def register_hook(self, hook):
            self.hooks.append(hook)

    ExactResumeHook().before_run(Runner())
    assert [type(hook) for hook in Runner.hooks[:2]] == [AtomicCheckpointHook, Own]
