"""A checkpoint is written whole or not at all (killed runs: test_exact_resume.py)."""

import os

import pytest
from mmengine.hooks import CheckpointHook

from mmkcr.engine.registered import AtomicCheckpointHook, ExactResumeHook
from mmkcr.engine.resume.atomic_checkpoint import AtomicLocalBackend, write_atomically


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
