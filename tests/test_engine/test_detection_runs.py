"""Detection: a resumed run is the unbroken one, and two processes are one."""

import pytest

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
DENSE = 'configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
SMALL = {
    'train_dataloader.dataset.indices': list(range(6)), 'train_dataloader.batch_size': 2,
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


@pytest.mark.parametrize('method', SEARCHES)
def test_a_resumed_search_is_the_unbroken_one(method, run_jobs, tmp_path, same_runs, moved):
    search, first = dict(config=SEARCHES[method]), str(tmp_path / 'unbroken/epoch_1.pth')
    assert run_jobs([
        dict(search, work_dir=str(tmp_path / 'unbroken'), options=SMALL),
        dict(search, work_dir=str(tmp_path / 'broken'), resume=True,
             options={**SMALL, 'load_from': first})]) == [0, 0]
    checkpoint, values = same_runs(tmp_path / 'unbroken', tmp_path / 'broken')
    assert moved(checkpoint['state_dict'], 'gate.alpha') >= 4
    assert LOGGED[method] <= values.keys()


@pytest.mark.long
def test_two_processes_are_one(run_jobs, tmp_path, close_runs, logged):
    """One process accumulates the gradients of two batches."""
    accumulated = {**ALL, 'optim_wrapper.accumulative_counts': 2}
    assert run_jobs([
        dict(config=DENSE, work_dir=str(tmp_path / 'one'), options=accumulated),
        dict(config=DENSE, work_dir=str(tmp_path / 'two'), options=ALL, processes=2)]) == [0, 0]
    one, two = close_runs(tmp_path / 'one', tmp_path / 'two')
    first, second = logged(one), logged(two)
    assert len(first['train/loss']) == 2 * len(second['train/loss']) == 16
    assert second['train/loss'][-1] < second['train/loss'][0]
    for name in ('val/coco/bbox_mAP', 'val/coco/segm_mAP'):
        assert first[name] == pytest.approx(second[name], abs=2e-3)
