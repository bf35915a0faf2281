"""Two processes are one process with the same global batch."""

import pytest
import torch
from torch import nn

from long_form import few
from mmkcr.methods.kcr.kernel_complexity import KernelComplexityLoss
from mmkcr.methods.search.teachers import FeatureDistillationLoss

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
SEGMENT = {'train_cfg.max_iters': 6, 'train_cfg.val_interval': 3,
           'model.architecture.decode_head.dropout_ratio': 0.,
           'model.architecture.auxiliary_head.dropout_ratio': 0.,
           # the shipped mean over labelled pixels is one over those of a process
           'model.architecture.decode_head.loss_decode.avg_non_ignore': False,
           'model.architecture.auxiliary_head.loss_decode.avg_non_ignore': False,
           **{key: value for key, value in SEARCH.items() if key != 'train_cfg.max_epochs'}}
# masks on queries and keys: test_sync_batch_norm.py
KINDS = few(dict(search=SEARCH, retrain=RETRAIN, segment_search=SEGMENT), 'segment_search')
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


class Task(nn.Module):
    """A task model of nothing but a backbone."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone

    def forward(self, x):
        return self.backbone(x)


def complexity(form):
    net = nn.Linear(6, 8).double()
    loss = KernelComplexityLoss(8, scale_free=True, form=form,
                                num_samples=12 if form == 'sample' else None).double()
    loss.refresh_from_features(torch.randn(12, 8))
    return net, lambda x, indices: loss(net(x), indices)


def distillation():
    student, teacher = (Task(nn.Linear(6, 8).double()) for _ in range(2))
    loss = FeatureDistillationLoss(dict())
    loss.teacher._model = teacher
    loss.bind(student)

    def value(x, _):
        with loss.watch():
            student(x)
        return loss(x, x)

    return student, value


LOSSES = dict(scale_free=lambda: complexity('projection'), sample=lambda: complexity('sample'),
              distillation=distillation)


def losses(part):
    """Values and gradients of every loss on (part of) a batch, whose images differ in scale."""
    found = {}
    for name, make in LOSSES.items():
        torch.manual_seed(0)
        net, loss = make()
        batch = torch.randn(6, 6).double() * torch.arange(1, 7)[:, None]
        value = loss(batch[part], torch.arange(6)[part])
        value.backward()
        found[name] = (value.detach(), [p.grad for p in net.parameters()])
    return found


def test_losses_that_are_ratios_and_roots_of_sums(two_processes):
    """Their values are those of one process, and so is the mean of their gradients."""
    first, second = two_processes(lambda rank: losses(slice(3 * rank, 3 * rank + 3)))
    for name, (value, gradients) in losses(slice(None)).items():
        assert first[name][0] == second[name][0]
        torch.testing.assert_close(first[name][0], value, rtol=1e-5, atol=0, msg=name)
        for one, two, wanted in zip(first[name][1], second[name][1], gradients):
            assert wanted.abs().max() > 1e-3, name
            torch.testing.assert_close((one + two) / 2, wanted, rtol=1e-4, atol=1e-6, msg=name)
