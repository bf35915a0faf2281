"""A run that is told to end, within an epoch, goes on to the end of the unbroken one."""

import multiprocessing
import re
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader

from long_form import few
from mmkcr.engine.resume.preemption import STATUS, keep_workers

# kind, and the iteration after which SIGTERM comes: within an epoch of 5 (search) or 9; where
# gradients are waiting; at the end of an epoch, also of two loaders without workers, which draw
# no batch in advance. `tests/faults` has the other kinds
CASES = few(dict(search=13, iterations=17, pruning=14, epoch_end=18, search_end=10),
            'iterations', 'search_end')
KINDS = dict(epoch_end='retrain', search_end='search')
WORKERS = dict(search_end=0)


@pytest.fixture(scope='module')
def runs(run_jobs, tmp_path_factory):
    """Work directories of unbroken runs, and of those that were told to end and were resumed."""
    root = tmp_path_factory.mktemp('preempted')
    jobs, expected, left = [], [], {}
    for case, after in CASES.items():
        kind = KINDS.get(case, case)
        unbroken, broken = str(root / f'{case}_unbroken'), str(root / f'{case}_broken')
        other = {'train_dataloader.num_workers': WORKERS.get(case, 1),
                 'train_dataloader.persistent_workers': False}
        jobs += [dict(kind=kind, work_dir=unbroken),
                 dict(kind=kind, work_dir=broken, kill=after, signal='SIGTERM'),
                 dict(kind=kind, work_dir=broken, resume=True, options=other)]
        expected += [0, STATUS, 0]
    begun = [job for job in jobs if not job.get('resume')]
    statuses = run_jobs(begun)
    for job, status in zip(begun, statuses):
        output = Path(job['work_dir'], 'output.txt').read_text()[-2000:]
        assert status == (STATUS if 'kill' in job else 0), (job, output)
        left[job['work_dir']] = sorted(path.name for path in Path(job['work_dir']).glob('*.pth'))
    assert run_jobs([job for job in jobs if job.get('resume')]) == [0] * len(CASES)
    return root, left


@pytest.mark.parametrize('case', CASES)
def test_resumed_is_unbroken(runs, same_runs, case):
    root, left = runs
    assert 'preempted.pth' in left[f'{root}/{case}_broken']
    same_runs(root / f'{case}_unbroken', root / f'{case}_broken')
    files = [sorted(path.name for path in (root / f'{case}_{name}').glob('*.pth'))
             for name in ('unbroken', 'broken')]
    assert files[0] == files[1]  # what was saved on the way has gone


def test_two_processes_agree_on_the_iteration(run_jobs, same_runs, tmp_path):
    """Gradients wait in both when the signal comes."""
    options = {'train_dataloader.num_workers': 0, 'train_dataloader.persistent_workers': False,
               'optim_wrapper.accumulative_counts': 3, 'train_cfg.max_iters': 12,
               'default_hooks.checkpoint.interval': 5, 'train_dataloader.batch_size': 4}
    jobs = [dict(kind='iterations', options=options, work_dir=str(tmp_path / name), processes=2)
            for name in ('unbroken', 'broken')]
    assert run_jobs([jobs[0], dict(jobs[1], kill=7, signal='SIGTERM')]) == [0, STATUS]
    assert (tmp_path / 'broken/last_checkpoint').read_text().endswith('preempted.pth')
    meta = torch.load(tmp_path / 'broken/preempted.pth', weights_only=False)['meta']
    assert meta['iter'] == 7
    assert run_jobs([dict(jobs[1], resume=True)]) == [0]
    same_runs(tmp_path / 'unbroken', tmp_path / 'broken')


def test_a_file_without_a_pointer_stays(tmp_path):
    """A run may be killed between the two; every later start died in its first iteration."""
    from mmkcr.engine.resume.preemption import PreemptionHook
    path = tmp_path / 'preempted.pth'
    path.write_bytes(b'weights')
    for pointer, stays in ((None, True), ('preempted.pth', True), ('epoch_1.pth', False)):
        if pointer is not None:
            (tmp_path / 'last_checkpoint').write_text(str(tmp_path / pointer))
        PreemptionHook._forget_old(SimpleNamespace(work_dir=str(tmp_path)))
        assert path.is_file() == stays


def test_the_signal_is_given_back(run_jobs, tmp_path):
    """After a training SIGTERM ends the process again as it did before."""
    from mmkcr.engine.resume.preemption import PreemptionHook
    before, hook = signal.getsignal(signal.SIGTERM), PreemptionHook()

    class Runner:
        train_loop, val_loop, work_dir = None, None, str(tmp_path)

    Runner.train_loop = Runner
    hook.before_train(Runner)
    assert signal.getsignal(signal.SIGTERM) == hook._note
    hook.after_train(Runner)
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(KeyError, match='SIGNOTHING'):
        PreemptionHook(signals=['SIGNOTHING'])


@pytest.mark.parametrize('context', [None, 'spawn'])
def test_workers_of_the_run_are_shielded_and_no_others(context):
    """A signal blocked in every worker would let a program that ends wait for them for ever."""
    loader, other = (DataLoader(range(8), num_workers=1, persistent_workers=True,
                                multiprocessing_context=context) for _ in range(2))
    keep_workers(loader, [signal.SIGTERM])
    keep_workers(DataLoader(range(8)), [signal.SIGTERM])  # has none
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
