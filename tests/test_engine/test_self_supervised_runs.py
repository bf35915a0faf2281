"""MoCo v3 and MOCA searches: a resumed run is an unbroken one, and two processes are one."""

import pytest

# see test_distributed.py
SGD = dict(type='SGD', lr=0.01, momentum=0.9, weight_decay=0.01, _delete_=True)
OPTIONS = {'train_cfg.max_epochs': 2, 'train_dataloader.num_workers': 0,
           'train_dataloader.persistent_workers': False,
           'optim_wrapper.weights.optimizer': SGD, 'optim_wrapper.architecture.optimizer': SGD}
COUNTS = dict(moco=['momentum_encoder.steps'], moca=['teacher.steps', 'codebook.steps'])
kinds = pytest.mark.parametrize('kind', COUNTS)


@kinds
def test_a_resumed_run_is_the_unbroken_one(kind, finished, same_runs, moved):
    unbroken = finished(dict(kind=kind, options=OPTIONS))
    whole, values = same_runs(unbroken, finished(dict(kind=kind, resume=True, options={
        **OPTIONS, 'load_from': f'{unbroken}/epoch_1.pth'})))
    assert {'train/loss', 'train/loss_kcr', 'train/loss_price'} <= values.keys()
    backbone = {name: value for name, value in whole['state_dict'].items()
                if name.startswith('backbone.')}
    assert moved(backbone, 'alpha') == 2
    for name in COUNTS[kind]:  # the copy was updated once an iteration
        assert int(whole['ema_state_dict'][f'module.{name}']) == whole['meta']['iter']


@kinds
def test_two_processes_are_one(kind, finished, close_runs):
    halves = {**OPTIONS, 'train_dataloader.batch_size': 4}
    close_runs(finished(dict(kind=kind, options=OPTIONS)),
               finished(dict(kind=kind, options=halves, processes=2)))
