"""A run that is told to end: its file, its signal and its workers (see test_exact_resume.py)."""

import multiprocessing
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.data import DataLoader

from mmkcr.engine.resume.checkpoints import PreemptionHook, keep_workers


def test_the_signal_is_given_back():
    """After a training SIGTERM ends the process again as it did before."""
    before, hook = signal.getsignal(signal.SIGTERM), PreemptionHook()
    runner = SimpleNamespace(train_loop=SimpleNamespace(), val_loop=None)
    hook.before_train(runner)
    assert signal.getsignal(signal.SIGTERM) == hook._note
    hook.after_train(runner)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize('context', [None, 'spawn'])
def test_workers_of_the_run_are_shielded_and_no_others(context):
    """A signal blocked in every worker would let a program that ends wait for them for ever."""
    loader, other = (DataLoader(range(8), num_workers=1, persistent_workers=True,
                                multiprocessing_context=context) for _ in range(2))
    keep_workers(loader)
    keep_workers(DataLoader(range(8)))  # has none
    # what starts a worker does not matter to those of others
    for shielded, one in ((True, loader), (False, other))[:1 if context else 2]:
        before = set(multiprocessing.active_children())
        batches = iter(one)
        worker, = set(multiprocessing.active_children()) - before
        if shielded:  # of another process: that of the parent must be obeyed
            subprocess.run(['kill', '-TERM', str(worker.pid)], check=True)
        assert [int(batch) for batch in batches] == list(range(8)) and worker.is_alive()
        blocked = re.search(r'SigBlk:\s*(\w+)', Path(f'/proc/{worker.pid}/status').read_text())[1]
        assert bool(int(blocked, 16) >> signal.SIGTERM - 1 & 1) == shielded
        worker.terminate()
        worker.join(60)
        assert not worker.is_alive()
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
