"""Fixtures of the engine's tests: real data on disk and training in other processes."""

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name('train_jobs.py')


@pytest.fixture(scope='session')
def digits_root(tmp_path_factory):
    """A folder with the embedded digits."""
    from lab.digits import write_digits
    root = tmp_path_factory.mktemp('data') / 'digits'
    write_digits(root)
    return str(root)


@pytest.fixture(scope='session')
def run_jobs(digits_root, tmp_path_factory):
    """Runs jobs of ``train_jobs.py`` one after the other; gives their exit statuses.

    Strings are hashed otherwise in every call, as in every process: what depends on the order of
    a set of names is then another run.
    """
    calls = itertools.count(1)

    def run(jobs, launcher=()):
        folder = tmp_path_factory.mktemp('jobs')
        jobs = [dict(data_root=digits_root, **job) for job in jobs]
        (folder / 'jobs.json').write_text(json.dumps(jobs))
        result = subprocess.run(
            [sys.executable, *launcher, str(SCRIPT), str(folder / 'jobs.json')],
            capture_output=True, text=True, timeout=600,
            env={**os.environ, 'PYTHONHASHSEED': str(next(calls))})
        assert result.returncode == 0, result.stderr[-4000:]
        statuses = folder / 'statuses.json'
        if not statuses.is_file():
            return None
        for job, status in zip(jobs, json.loads(statuses.read_text())):
            if status > 0:  # killed ones are below 0
                print((Path(job['work_dir']) / 'output.txt').read_text()[-3000:])
        return json.loads(statuses.read_text())

    return run


@pytest.fixture(scope='session')
def two_processes():
    """``two_processes()``: the launcher of ``run_jobs`` for two processes, with a free port."""

    def launcher():
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = free.getsockname()[1]
        return ['-m', 'torch.distributed.run', '--nproc_per_node=2', f'--master_port={port}']

    return launcher


@pytest.fixture(scope='session')
def last_checkpoint():
    """Loads the checkpoint that ``last_checkpoint`` of a work directory points to."""

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
