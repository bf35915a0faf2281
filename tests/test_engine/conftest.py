"""Fixtures of the engine's tests: real data on disk and training in other processes."""

from pathlib import Path

import pytest
import torch


@pytest.fixture(scope='session')
def digits_root(written_digits):
    """A folder with the embedded digits."""
    from lab.digits import DigitsOptions
    return str(written_digits(DigitsOptions()))


@pytest.fixture(scope='session')
def run_jobs(digits_root, servers):
    """``run_jobs(jobs)``: run jobs of ``train_jobs.py`` one after the other; their exit statuses.

    With ``apart=True`` neighbours come from two processes, in which strings are hashed differently.
    """
    def run(jobs, apart=False):
        statuses = []
        for index, job in enumerate(jobs):
            server = index % 2 if apart else 0
            statuses.append(servers.run(dict(data_root=digits_root, **job), server))
            if statuses[-1] > 0:  # killed ones are below 0
                print((Path(job['work_dir']) / 'output.txt').read_text()[-3000:])
        return statuses

    return run


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
