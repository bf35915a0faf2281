"""Detection: a resumed run is the unbroken one, and two processes are one."""

import functools

import pytest
import torch

SEARCHES = dict(
    kcr='configs/kcr/detection/kcr-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py',
    dcs='configs/dcs/detection/dcs-ssdlite_mobilevit-mini_search_1xb8_digit-scenes.py',
    ofb='configs/ofb/detection/ofb-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py')
LOGGED = dict(
    kcr={'train/loss_mask', 'train/loss_kcr', 'train/loss_price', 'train/macs',
         'train/architecture/loss', 'val/coco/segm_mAP'},
    dcs={'train/loss_cls', 'train/loss_price', 'train/macs', 'train/architecture/loss',
         'val/coco/bbox_mAP'},
    ofb={'train/loss_mask', 'train/macs', 'val/coco/segm_mAP'})
#: A batch of the second epoch; a search with two halves of data has fewer in each.
DENSE = 'configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
SMALL = {
    'train_dataloader.dataset.indices': list(range(8)), 'train_dataloader.batch_size': 2,
    'val_dataloader.dataset.indices': list(range(2)), 'default_hooks.logger.interval': 1,
    'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 1,
    'visualizer.vis_backends': [dict(type='LocalVisBackend')]}
# A batch's loss is a mean over objects, so two batches of one are not one of two; they are two
# batches of one whose gradients are accumulated. The samplers draw at random, and otherwise on
# every rank, unless they take everything.
ALL = {
    **SMALL, 'train_dataloader.batch_size': 1, 'param_scheduler': [],
    'train_dataloader.dataset.indices': list(range(8)), 'model.test_cfg.rcnn.score_thr': 0.,
    'model.train_cfg.rpn.sampler.num': 10**5, 'model.train_cfg.rcnn.sampler.num': 10**4,
    'optim_wrapper.optimizer': dict(
        type='SGD', lr=0.01, momentum=0.9, weight_decay=0.01, _delete_=True)}


@pytest.fixture(scope='module')
def resumed(run_jobs, tmp_path_factory):
    """``resumed(method)``: folders of an unbroken search and of one from its first epoch on."""

    @functools.lru_cache(maxsize=None)
    def resumed(method):
        root = tmp_path_factory.mktemp(method)
        search, first = dict(config=SEARCHES[method]), str(root / 'unbroken/epoch_1.pth')
        assert run_jobs([
            dict(search, work_dir=str(root / 'unbroken'), options=SMALL),
            dict(search, work_dir=str(root / 'broken'), resume=True,
                 options={**SMALL, 'load_from': first})]) == [0, 0]
        return root

    return resumed


@pytest.fixture(scope='module')
def counted(run_jobs, tmp_path_factory):
    """One process, and two with half of its batches each."""
    root = tmp_path_factory.mktemp('counted')
    accumulated = {**ALL, 'optim_wrapper.accumulative_counts': 2}
    assert run_jobs([
        dict(config=DENSE, work_dir=str(root / 'one'), options=accumulated),
        dict(config=DENSE, work_dir=str(root / 'two'), options=ALL, processes=2)]) == [0, 0]
    return root


@pytest.mark.parametrize('method', SEARCHES)
def test_a_resumed_search_is_the_unbroken_one(method, resumed, last_checkpoint, logged):
    root = resumed(method)
    unbroken, broken = (last_checkpoint(root / name) for name in ('unbroken', 'broken'))
    assert unbroken['state_dict'].keys() == broken['state_dict'].keys()
    for name, value in unbroken['state_dict'].items():
        assert torch.equal(value, broken['state_dict'][name]), name
    alphas = [v for k, v in unbroken['state_dict'].items() if k.endswith('gate.alpha')]
    assert len(alphas) >= 4 and all(alpha.unique().numel() > 4 for alpha in alphas)
    first, second = logged(unbroken), logged(broken)
    assert LOGGED[method] <= first.keys()
    assert first == second


@pytest.mark.long
def test_two_processes_are_one(counted, last_checkpoint, logged):
    """One process accumulates the gradients of two batches."""
    one, two = (last_checkpoint(counted / name) for name in ('one', 'two'))
    assert one['state_dict'].keys() == two['state_dict'].keys()
    for name, value in one['state_dict'].items():
        torch.testing.assert_close(two['state_dict'][name], value, rtol=1e-4, atol=1e-5, msg=name)
    first, second = logged(one), logged(two)
    assert len(first['train/loss']) == 2 * len(second['train/loss']) == 16
    assert second['train/loss'][-1] < second['train/loss'][0]
    for name in ('val/coco/bbox_mAP', 'val/coco/segm_mAP'):
        assert first[name] == pytest.approx(second[name], abs=2e-3)
