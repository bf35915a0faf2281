"""A search as a job of a real Slurm gives what one process gives."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tool_files import load_tool

REPO = Path(__file__).parents[2]
BASE = REPO / 'configs/kcr/digits/kcr-search_vit-mini_1xb64_digits.py'
CLUSTER = Path(__file__).with_name('cluster.sh')

# The digits' own config on every 20th digit. SGD, because Adam turns the rounding noise of a
# gradient that is zero into whole steps.
CONFIG = """
_base_ = {base!r}
custom_imports = dict(imports=['mmkcr', 'slow'], allow_failed_imports=False)
_data = dict(data_root={data!r}, indices=list(range(0, 1437, 20)))
_loader = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(dataset=_data, **_loader)
val_dataloader = dict(dataset=dict(data_root={data!r}), **_loader)
test_dataloader = val_dataloader
default_hooks = dict(logger=dict(interval=1))
custom_hooks = [
    dict(type='mmkcr.WarmupSwitchHook', begin=1),
    dict(type='mmkcr.NystromRefreshHook', interval=1)]
train_cfg = dict(max_epochs=2, val_interval=2)
_sgd = dict(_delete_=True, type='SGD', lr=0.02, momentum=0.9, weight_decay=0.01)
"""
SEARCH = CONFIG + """
optim_wrapper = dict(weights=dict(optimizer=_sgd), architecture=dict(optimizer=_sgd))
model = dict(architecture=dict(backbone=dict(gates=dict(init=0.05))))
"""
EPOCHS = 6
LONG = CONFIG.replace('range(0, 1437, 20)', 'range(0, 1437, 10)') + """
custom_hooks.append(dict(type='SlowHook'))
train_cfg = dict(max_epochs={epochs}, val_interval={epochs})
train_dataloader = dict(batch_size=8, dataset=_data, **_loader)
"""


@pytest.fixture(scope='module')
def cluster(tmp_path_factory):
    """Environment of a user of a Slurm that was started for this test."""
    folder = tmp_path_factory.mktemp('slurm')
    script = ['bash', str(CLUSTER)]
    environment = dict(os.environ, PATH=f'{Path(sys.executable).parent}:{os.environ["PATH"]}')
    started = subprocess.run([*script, 'start', str(folder)], env=environment, text=True,
                             stderr=subprocess.PIPE, timeout=300)
    try:
        if started.returncode == 77:
            pytest.skip(f'no Slurm here: {started.stderr.strip()}')
        assert started.returncode == 0, started.stderr
        path = [str(Path(__file__).parent), os.environ.get('PYTHONPATH', '')]
        yield dict(environment, SLURM_CONF=str(folder / 'slurm.conf'), OMP_NUM_THREADS='1',
                   PYTHONPATH=os.pathsep.join(path), MASTER_PORT=str(free_port()), GPUS='2',
                   GPUS_PER_NODE='2', CPUS_PER_TASK='1', SRUN_ARGS='--gres=none')
    finally:
        subprocess.run([*script, 'stop', str(folder)], check=True, timeout=60)
    assert not list(folder.glob('*.pid'))


@pytest.fixture(scope='module')
def runs(cluster, digits_root, tmp_path_factory):
    """Work directories: of this process alone, and of the two tasks of a job meanwhile."""
    root = tmp_path_factory.mktemp('jobs')
    config, found = root / 'slurm-search.py', (root / 'one', root / 'two')
    config.write_text(SEARCH.format(base=str(BASE), data=str(digits_root)))
    size = '--cfg-options', 'train_dataloader.batch_size='
    job = submit(cluster, config, found[1], size[0], f'{size[1]}8')
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent)
        load_tool('train').main([str(config), '--work-dir', str(found[0]), size[0], f'{size[1]}16'])
    finish(job)
    return found


def free_port():
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return free.getsockname()[1]


def submit(environment, config, work_dir, *words):
    """A training as a job named after its folder; with REQUEUE it stays in the queue."""
    command = ['bash', 'tools/slurm_train.sh', 'debug', work_dir.name, config, work_dir, *words]
    return subprocess.Popen([str(word) for word in command], cwd=REPO, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(job):
    """What it printed."""
    printed, _ = job.communicate(timeout=300)
    assert job.returncode == 0, printed[-3000:]
    return printed


@pytest.fixture(scope='module')
def requeued(cluster, digits_root, tmp_path_factory):
    """Work directories of a job that ran through, of one that an urgent job and then a signal to
    its step stopped, and the text of the latter's output."""
    root = tmp_path_factory.mktemp('requeued')
    config = root / 'long-search.py'
    config.write_text(LONG.format(base=str(BASE), data=str(digits_root), epochs=EPOCHS))
    whole, broken = root / 'whole', root / 'broken'
    finish(submit(cluster, config, whole))
    job = finish(submit(dict(cluster, REQUEUE='1', SLOW='0.4'), config, broken)).split()[-1]
    wait_for(lambda: iterations(broken) >= 9, cluster)
    subprocess.run(['sbatch', '-p', 'urgent', '-n', '2', '-o', '/dev/null', '--wrap', 'sleep 1'],
                   env=cluster, check=True, capture_output=True)
    last = broken / 'last_checkpoint'
    wait_for(lambda: last.is_file() and last.read_text().endswith('preempted.pth'), cluster)
    begun = iterations(broken)
    wait_for(lambda: iterations(broken) >= begun + 3, cluster)
    # as at the end of its time
    subprocess.run(['scancel', '--signal=TERM', f'{job}.0'], env=cluster, check=True)
    wait_for(lambda: state(job, cluster) == 'COMPLETED', cluster)
    return whole, broken, (broken / f'slurm-{job}.out').read_text()


@pytest.mark.long
def test_a_job_that_was_stopped_twice_ends_as_one_that_was_not(requeued):
    whole, broken, output = requeued
    assert output.count('Told to end: saved iteration') == 2
    assert 'told to end after start 1: asking for another start' in output
    one, two = (torch.load(folder / f'epoch_{EPOCHS}.pth', weights_only=False)
                for folder in (whole, broken))
    assert [name for name, value in one['state_dict'].items()
            if not torch.equal(value, two['state_dict'][name])] == []
    assert last_line(whole, -1)['accuracy/top1'] == last_line(broken, -1)['accuracy/top1']
    assert not (broken / 'preempted.pth').exists()


def iterations(folder):
    """Logged iterations of all starts."""
    return sum(text.read_text().count('"loss"') for text in folder.glob('*/vis_data/scalars.json'))


def state(job, environment):
    shown = subprocess.run(['scontrol', 'show', 'job', job], env=environment, capture_output=True,
                           text=True).stdout
    return next((word.split('=')[1] for word in shown.split() if word.startswith('JobState=')), '')


def wait_for(condition, environment, seconds=400):
    for _ in range(seconds * 2):
        if condition():
            return
        time.sleep(0.5)
    queue = subprocess.run(['squeue'], env=environment, capture_output=True, text=True).stdout
    raise AssertionError(f'nothing happened within {seconds} s:\n{queue}')


def test_two_tasks_end_as_one_process(runs):
    single, double = (torch.load(folder / 'epoch_2.pth', weights_only=False) for folder in runs)
    assert single['state_dict'].keys() == double['state_dict'].keys()
    for name, value in single['state_dict'].items():
        other = double['state_dict'][name]
        if name.endswith('kcr.basis'):  # a basis is one up to rotations of its subspace
            value, other = value @ value.T, other @ other.T
        torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-5, msg=name)
    assert len([name for name in double['state_dict'] if name.endswith('alpha')]) == 4
    accuracies = [last_line(folder)['accuracy/top1'] for folder in runs]
    assert accuracies[0] == accuracies[1] > 0
    (log, ) = runs[1].glob('*/*.log')
    text = log.read_text()
    assert 'Distributed launcher: slurm' in text and 'GPU number: 2' in text


def last_line(folder, start=0):
    scalars = sorted(folder.glob('*/vis_data/scalars.json'))[start]
    return json.loads(scalars.read_text().splitlines()[-1])
