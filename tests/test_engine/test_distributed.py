"""Two processes are one process with the same global batch."""

from pathlib import Path

import pytest
import torch

from long_form import few
from . import loss_job

# SGD, because Adam turns the rounding noise of a gradient that is zero into whole steps;
# no stochastic depth and no mixup, whose noise differs by rank
SGD = dict(type='SGD', lr=0.05, momentum=0.9, weight_decay=0.01)
COMMON = {'train_cfg.max_epochs': 2, 'train_dataloader.num_workers': 1,
          'model.architecture.backbone.drop_path_rate': 0.}
SEARCH = {**COMMON, 'optim_wrapper.weights.optimizer': dict(SGD, _delete_=True),
          'optim_wrapper.architecture.optimizer': dict(SGD, _delete_=True),
          'optim_wrapper.weights.accumulative_counts': 2}
RETRAIN = {**COMMON, 'model.architecture.train_cfg.augments': None,
           'optim_wrapper.optimizer': dict(SGD, _delete_=True)}
# Masks on queries and keys, batch norms, and the clusters and Q of the information bottleneck loss.
# Q is in fp32: small steps, so that what follows from its rounding stays small.
MASKED = {kind: {key: dict(value, lr=0.01) if key.endswith('.optimizer') else value
                 for key, value in options.items() if 'drop_path' not in key}
          for kind, options in (('masked_search', SEARCH), ('masked_retrain', RETRAIN))}
SEGMENT = {'train_cfg.max_iters': 6, 'train_cfg.val_interval': 3,
           'model.architecture.decode_head.dropout_ratio': 0.,
           'model.architecture.auxiliary_head.dropout_ratio': 0.,
           # the shipped mean over labelled pixels is one over those of a process
           'model.architecture.decode_head.loss_decode.avg_non_ignore': False,
           'model.architecture.auxiliary_head.loss_decode.avg_non_ignore': False,
           **{key: value for key, value in SEARCH.items() if key != 'train_cfg.max_epochs'}}
KINDS = few(dict(search=SEARCH, retrain=RETRAIN, **MASKED, segment_search=SEGMENT),
            'masked_retrain', 'segment_search')
DENSE = 'configs/kcr/detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
# A batch's loss is a mean over objects, so two batches of one are not one of two; they are two
# batches of one whose gradients are accumulated. The samplers draw at random, and otherwise on
# every rank, unless they take everything.
DETECTOR = {
    'train_dataloader.batch_size': 1, 'train_dataloader.dataset.indices': list(range(8)),
    'val_dataloader.dataset.indices': list(range(2)), 'default_hooks.logger.interval': 1,
    'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 1, 'param_scheduler': [],
    'visualizer.vis_backends': [dict(type='LocalVisBackend')],
    'model.test_cfg.rcnn.score_thr': 0., 'model.train_cfg.rpn.sampler.num': 10**5,
    'model.train_cfg.rcnn.sampler.num': 10**4,
    'optim_wrapper.optimizer': dict(SGD, lr=0.01, _delete_=True)}


@pytest.mark.parametrize('kind', KINDS)
def test_weights_gates_bases_and_averages(kind, finished, close_runs, logged, moved):
    segments = kind == 'segment_search'
    batch = 2 if segments else 8
    single, double = close_runs(*(finished(dict(kind=kind, processes=processes, options={
        **KINDS[kind], 'train_dataloader.batch_size': batch // processes}))
        for processes in (1, 2)))
    state, score = double['state_dict'], 'val/mIoU' if segments else 'val/accuracy/top1'
    assert moved(state, 'alpha') == (0 if 'search' not in kind else 4 if segments else 2)
    assert moved(state, 'mask.bias') == (2 if kind.startswith('masked') else 0)
    assert logged(single)[score] == logged(double)[score]


@pytest.mark.long
def test_a_detector(finished, close_runs, logged):
    """One process accumulates the gradients of two batches."""
    accumulated = {**DETECTOR, 'optim_wrapper.accumulative_counts': 2}
    one, two = close_runs(finished(dict(config=DENSE, options=accumulated)),
                          finished(dict(config=DENSE, options=DETECTOR, processes=2)))
    first, second = logged(one), logged(two)
    assert len(first['train/loss']) == 2 * len(second['train/loss']) == 16
    assert second['train/loss'][-1] < second['train/loss'][0]
    for name in ('val/coco/bbox_mAP', 'val/coco/segm_mAP'):
        assert first[name] == pytest.approx(second[name], abs=2e-3)


def test_losses_that_are_ratios_and_roots_of_sums(run_jobs, tmp_path):
    """Their values are those of one process, and so is the mean of their gradients."""
    path = Path(__file__).with_name('loss_job.py')
    assert run_jobs([dict(words=['python', str(path), str(tmp_path)], cwd=str(tmp_path),
                          work_dir=str(tmp_path), processes=2)]) == [0]
    whole = loss_job.run(slice(None))
    first, second = (torch.load(tmp_path / f'{rank}.pth') for rank in (0, 1))
    assert len(whole) == 3
    for name, (value, gradients) in whole.items():
        assert first[name][0] == second[name][0]
        torch.testing.assert_close(first[name][0], value, rtol=1e-5, atol=0, msg=name)
        for one, two, wanted in zip(first[name][1], second[name][1], gradients):
            assert wanted.abs().max() > 1e-3, name
            torch.testing.assert_close((one + two) / 2, wanted, rtol=1e-4, atol=1e-6, msg=name)
