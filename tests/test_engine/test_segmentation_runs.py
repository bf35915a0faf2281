"""Segmentors, in iteration-based runs: killed and resumed, and two processes."""

import signal
from pathlib import Path

import pytest
import torch

from long_form import few

KINDS = few(('segment', 'segment_search'), 'segment_search')
SGD = dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=0.01, _delete_=True)
# no noise that differs by rank; SGD, because Adam makes steps of rounding noise
CALM = {'train_cfg.max_iters': 6, 'train_cfg.val_interval': 3, 'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False}
TASK = {'backbone.drop_path_rate': 0., 'decode_head.dropout_ratio': 0.,
        'auxiliary_head.dropout_ratio': 0.}
DISTRIBUTED = {**CALM, **{f'model.architecture.{key}': value for key, value in TASK.items()},
               'optim_wrapper.weights.optimizer': SGD,
               'optim_wrapper.architecture.optimizer': SGD}


@pytest.fixture(scope='module')
def work_dirs(run_jobs, tmp_path_factory):
    """Unbroken, killed and resumed, and calm runs of one process and of two."""
    root = tmp_path_factory.mktemp('segmentation')
    jobs, expected = [], []
    for kind in KINDS:
        other = {'train_dataloader.num_workers': 1, 'train_dataloader.persistent_workers': False}
        jobs += [dict(kind=kind, work_dir=f'{root}/{kind}_unbroken'),
                 dict(kind=kind, work_dir=f'{root}/{kind}_broken', kill=9),
                 dict(kind=kind, work_dir=f'{root}/{kind}_broken', resume=True, options=other)]
        expected += [0, -signal.SIGKILL, 0]
    options = {**DISTRIBUTED, 'train_dataloader.batch_size': 2}
    jobs += [dict(kind='segment_search', work_dir=f'{root}/one', options=DISTRIBUTED),
             dict(kind='segment_search', work_dir=f'{root}/two', options=options, processes=2)]
    statuses = run_jobs(jobs)
    for job, status, wanted in zip(jobs, statuses, [*expected, 0, 0]):
        assert status == wanted, (job, Path(job['work_dir'], 'output.txt').read_text()[-3000:])
    return root


@pytest.mark.parametrize('kind', KINDS)
def test_resumed_run_is_the_unbroken_one(kind, work_dirs, last_checkpoint, logged):
    unbroken, resumed = (last_checkpoint(work_dirs / f'{kind}_{name}')
                         for name in ('unbroken', 'broken'))
    assert (work_dirs / f'{kind}_broken' / 'last_checkpoint').read_text().endswith('iter_14.pth')
    for key in ('state_dict', 'ema_state_dict'):
        assert unbroken[key].keys() == resumed[key].keys()
        for name, value in unbroken[key].items():
            assert torch.equal(value, resumed[key][name]), name
    values = logged(unbroken)
    assert {'train/loss', 'train/decode.loss_ce', 'val/mIoU'} <= values.keys()
    assert values == logged(resumed) and len(values['train/loss']) == 14
    alphas = [value for name, value in unbroken['state_dict'].items() if name.endswith('alpha')]
    assert len(alphas) == (4 if kind == 'segment_search' else 0)
    assert all(alpha.unique().numel() > 4 for alpha in alphas)
    if kind == 'segment_search':
        assert {'train/loss_kcr', 'train/loss_price', 'train/temperature'} <= values.keys()
        assert int(unbroken['state_dict']['regularizers.kcr.basis_epoch']) == 13


def test_two_processes_are_one(work_dirs, last_checkpoint, logged):
    one, two = (last_checkpoint(work_dirs / name) for name in ('one', 'two'))
    assert one['state_dict'].keys() == two['state_dict'].keys()
    for name, value in one['state_dict'].items():
        other = two['state_dict'][name]
        if name.endswith('kcr.basis'):  # a basis is one up to rotations of its subspace
            value, other = value @ value.T, other @ other.T
        torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-5, msg=name)
    assert logged(one)['val/mIoU'] == logged(two)['val/mIoU']
