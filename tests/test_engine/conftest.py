"""Fixtures of the engine's tests: real data on disk and training in other processes."""

from pathlib import Path
from uuid import uuid4

import pytest


@pytest.fixture(scope='session')
def digits_root(written_digits):
    """A folder with the embedded digits."""
    from lab.digits import DigitsOptions
    return str(written_digits(DigitsOptions()))


@pytest.fixture(scope='session')
def toy():
    """Module ``kernel_toy``: a tiny task, its data and its Runner."""
    from .test_hooks import kernel_toy
    return kernel_toy


@pytest.fixture
def build(toy, tmp_path):
    """``build(**overrides)``: a Runner of the toy run in a folder of its own."""
    def make(work_dir=None, **overrides):
        return toy.make_runner(work_dir or tmp_path, uuid4().hex, **overrides)
    return make


@pytest.fixture(scope='session')
def run_jobs(digits_root, servers):
    """``run_jobs(jobs)``: run jobs of ``train_jobs.py`` one after the other; their exit statuses.

    With ``server=1`` they come from a process in which strings are hashed differently.
    """
    def run(jobs, server=0):
        statuses = []
        for job in jobs:
            statuses.append(servers.run(dict(data_root=digits_root, **job), server))
            if statuses[-1] > 0:  # killed ones are below 0
                print((Path(job['work_dir']) / 'output.txt').read_text()[-3000:])
        return statuses

    return run


@pytest.fixture(scope='session')
def finished(run_jobs, tmp_path_factory):
    """``finished(job)``: work directory of a run that ended well; equal jobs run once."""
    done = []

    def run(job):
        for other, folder in done:
            if other == job:
                return folder
        folder = tmp_path_factory.mktemp('finished')
        assert run_jobs([dict(job, work_dir=str(folder))]) == [0]
        done.append((job, folder))
        return folder

    return run


@pytest.fixture(scope='session')
def last_checkpoint():
    """Loads the checkpoint that ``last_checkpoint`` of a work directory points to."""
    import torch

    def load(work_dir):
        path = (Path(work_dir) / 'last_checkpoint').read_text()
        return torch.load(path, map_location='cpu', weights_only=False)

    return load


@pytest.fixture(scope='session')
def logged():
    """Every logged value of a run by name, times and memory aside."""

    def values(checkpoint):
        scalars = checkpoint['message_hub']['log_scalars']
        return {name: buffer.data[0].tolist() for name, buffer in scalars.items()
                if not name.endswith(('time', 'memory', 'eta'))}

    return values


def _flat(tree, prefix=''):
    """Entries of nested dicts and lists by their paths."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        if isinstance(value, (dict, list, tuple)):
            yield from _flat(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}', value


@pytest.fixture(scope='session')
def same_runs(last_checkpoint, logged):
    """``same_runs(one, other)``: two work directories end alike, to the bit.

    Weights, averages, optimizers, schedules and every logged value. Returns the checkpoint of the
    first, and what it logged.
    """
    import torch

    def compare(one, other):
        first, second = map(last_checkpoint, (one, other))
        assert first.keys() == second.keys()
        for key in ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers'):
            values, others = (dict(_flat(checkpoint.get(key, {}))) for checkpoint in
                              (first, second))
            assert values.keys() == others.keys()
            assert [name for name, value in values.items() if not (
                torch.equal(value, others[name]) if torch.is_tensor(value)
                else value == others[name])] == []
        assert len(dict(_flat(first['optimizer']))) > 100
        assert logged(first) == logged(second)
        return first, logged(first)

    return compare


@pytest.fixture(scope='session')
def close_runs(last_checkpoint):
    """``close_runs(one, other)``: weights and averages differ by rounding; both checkpoints."""
    import torch

    def compare(one, other, tolerance=1e-5):
        found = first, second = [last_checkpoint(folder) for folder in (one, other)]
        for key in ('state_dict', 'ema_state_dict'):
            values, others = (checkpoint.get(key, {}) for checkpoint in found)
            assert values.keys() == others.keys()
            for name, value in values.items():
                other = others[name]
                if name.endswith('kcr.basis'):  # a basis is one up to rotations of its subspace
                    value, other = value @ value.T, other @ other.T
                torch.testing.assert_close(other, value, rtol=tolerance, atol=tolerance, msg=name)
        return first, second

    return compare


@pytest.fixture(scope='session')
def moved():
    """``moved(state, suffix)``: how many such tensors there are, each of which was trained."""
    def count(state, suffix):
        found = [value for name, value in state.items() if name.endswith(suffix)]
        assert all(value.unique().numel() > 4 for value in found)
        return len(found)

    return count
