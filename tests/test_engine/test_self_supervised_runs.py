"""MoCo v3 and MOCA searches: a resumed run is an unbroken one, and two processes are one."""

import pytest

# see test_distributed.py
SGD = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.01, _delete_=True)
OPTIONS = {'train_cfg.max_epochs': 2, 'train_dataloader.num_workers': 0,
           'train_dataloader.persistent_workers': False,
           'optim_wrapper.weights.optimizer': SGD, 'optim_wrapper.architecture.optimizer': SGD}
KINDS = ('moco', 'moca')


@pytest.fixture(scope='module')
def runs(run_jobs, tmp_path_factory):
    """Work directories of an unbroken run, of one from its first epoch on, and of two processes."""
    root, jobs = tmp_path_factory.mktemp('runs'), []
    halves = {**OPTIONS, 'train_dataloader.batch_size': 4}
    for kind in KINDS:
        common = dict(kind=kind, options=OPTIONS)
        jobs += [dict(common, work_dir=f'{root}/{kind}/whole'),
                 dict(common, work_dir=f'{root}/{kind}/broken', resume=True, options={
                     **OPTIONS, 'load_from': f'{root}/{kind}/whole/epoch_1.pth'}),
                 dict(common, work_dir=f'{root}/{kind}/two', options=halves, processes=2)]
    assert run_jobs(jobs) == [0] * len(jobs)
    return root


@pytest.mark.parametrize('kind', KINDS)
def test_a_resumed_run_is_the_unbroken_one(kind, runs, same_runs, moved):
    whole, values = same_runs(runs / kind / 'whole', runs / kind / 'broken')
    assert {'train/loss', 'train/loss_kcr', 'train/loss_price'} <= values.keys()
    backbone = {name: value for name, value in whole['state_dict'].items()
                if name.startswith('backbone.')}
    assert moved(backbone, 'alpha') == 2


@pytest.mark.parametrize('kind, counts', [
    ('moco', ['momentum_encoder.steps']), ('moca', ['teacher.steps', 'codebook.steps'])])
def test_the_copy_was_updated_once_an_iteration(kind, counts, runs, last_checkpoint):
    checkpoint = last_checkpoint(runs / kind / 'whole')
    for name in counts:
        assert int(checkpoint['ema_state_dict'][f'module.{name}']) == checkpoint['meta']['iter']


@pytest.mark.parametrize('kind', KINDS)
def test_two_processes_are_one(kind, runs, close_runs):
    close_runs(runs / kind / 'whole', runs / kind / 'two')
