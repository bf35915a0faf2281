"""Batch norms of two processes are those of one: the function, and shipped configs as they are."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from long_form import few
from mmkcr.engine.sync_batch_norm import synchronize

SGD = dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.01, _delete_=True)
FEW = {'train_dataloader.dataset.indices': list(range(0, 1437, 52)),
       'val_dataloader.dataset.indices': list(range(0, 360, 30)),
       'default_hooks.logger.interval': 1, 'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 1}
DIGITS = 'configs/dcs/digits/dcs-{}-mini_1xb64_digits.py'
# 16 small digits of ImageNet's data loader are enough for two iterations of a ResNet-50
TINY_IMAGENET = {
    f'{part}_dataloader.dataset': dict(
        type='CustomDataset', data_root='data/digits', data_prefix=folder, _delete_=True,
        indices=list(range(0, 352, 22)), pipeline=[
            dict(type='LoadImageFromFile'), dict(type='PackInputs')])
    for part, folder in (('train', 'train'), ('val', 'val'), ('test', 'val'))}
# The shipped configs: norms, gates, losses and hooks as they are. In fp64, so that no mask, a step
# function, flips by rounding; with SGD, because Adam makes whole steps of the rounding noise of a
# gradient that is zero, as of a bias before a batch norm.
CONFIGS = few({
    'search': (DIGITS.format('search_mobilevit'), {
        **FEW, 'optim_wrapper.weights.optimizer': SGD,
        'optim_wrapper.architecture.optimizer': SGD}),
    'retrain': (DIGITS.format('retrain_efficientvit'), {
        **FEW, 'optim_wrapper.optimizer': SGD, 'custom_hooks.1.begin': 1,
        # all channels, as before a search
        'model.architecture.backbone.structure': None, 'model.architecture.backbone.outputs': False,
    }),
    'resnet': ('configs/ofb/search/ofb-search_resnet50_8xb128_in1k.py', {
        **TINY_IMAGENET, 'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 1,
        'optim_wrapper.optimizer': SGD, 'default_hooks.logger.interval': 1}),
}, 'search', 'retrain')


class Doubled(nn.BatchNorm2d):
    """With a forward of its own around the host's."""

    def forward(self, x):
        return 2 * super().forward(x)


def steps(layer, batch):
    """Output, statistics and gradients of three steps and an evaluation on (part of) a batch."""
    seen, layer = {}, layer.train()
    for step in range(3):
        x = batch[step].clone().requires_grad_()
        out = layer(x)
        shape = out.shape[1:]
        weight = torch.arange(shape.numel(), dtype=out.dtype).view(shape).sin()
        layer.zero_grad()
        ((out * weight).square().sum() / 6).backward()
        seen.update({f'out{step}': out.detach(), f'grad{step}': x.grad})
        seen.update({f'{name}{step}': p.grad.clone() for name, p in layer.named_parameters()})
    seen['eval'] = layer.eval()(batch[0])
    return {**seen, **{name: value.clone() for name, value in layer.named_buffers()}}


def cases():
    generator = torch.Generator().manual_seed(0)
    for name, layer, shape in (
            ('maps', nn.BatchNorm2d(4), (6, 4, 3, 5)), ('vectors', nn.BatchNorm1d(4), (6, 4)),
            ('plain', nn.BatchNorm2d(4, affine=False, momentum=None), (6, 4, 2, 2)),
            ('no_statistics', nn.BatchNorm2d(4, track_running_stats=False), (6, 4, 2, 2)),
            ('nothing', nn.BatchNorm2d(4), (6, 4, 3, 5)),
            ('subclass', Doubled(4, eps=1e-2, momentum=0.3), (6, 4, 3, 5))):
        for parameter in layer.parameters():
            nn.init.normal_(parameter, 1, 0.3, generator=generator)
        yield name, layer.double(), torch.randn(3, *shape, generator=generator).double() * 3 + 5


def parts(rank):
    """What a process finds on its images of every case."""
    found = {}
    for name, layer, batch in cases():
        handles = synchronize(layer)
        here = 6 if name == 'nothing' else 4  # the others there
        found[name] = steps(layer, batch[:, here:] if rank else batch[:, :here])
        for handle in handles:
            handle.remove()
        assert not F.batch_norm.__dict__ and not layer._forward_hooks
    return found


def test_outputs_gradients_and_statistics(two_processes):
    whole = {name: steps(layer, batch) for name, layer, batch in cases()}
    first, second = two_processes(parts)
    assert len(whole) == 6
    for case, values in whole.items():
        for name, value in values.items():
            one, two = first[case][name], second[case][name]
            if name.startswith(('weight', 'bias')):
                found = one + two  # each has the gradient of its images
            elif name.startswith(('out', 'grad', 'eval')):
                found = torch.cat([one, two])
            else:
                found = one
                assert torch.equal(one, two), (case, name)  # statistics are the same to the bit
            torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-12, msg=(case, name))


@pytest.fixture(scope='module')
def job_of(digits_root):
    """``job_of(kind, processes)``: a job of so many processes with one global batch."""
    def make(kind, processes):
        path, options = CONFIGS[kind]
        options = {key: dict(value, data_root=digits_root) if key.endswith('.dataset') else value
                   for key, value in options.items()}
        return dict(config=path, precise=True, buffers=True, processes=processes, options={
            **options, 'train_dataloader.batch_size': 8 // processes})

    return make


@pytest.mark.parametrize('kind', CONFIGS)
def test_two_processes_are_one(kind, job_of, finished, close_runs, logged, moved):
    one, two = close_runs(*(finished(job_of(kind, processes)) for processes in (1, 2)))
    assert len([name for name in one['state_dict'] if name.endswith('running_var')]) > 10
    assert kind == 'resnet' or moved(one['state_dict'], 'mask.bias') > 1
    assert logged(one)['val/accuracy/top1'] == logged(two)['val/accuracy/top1']


@pytest.mark.parametrize('kind', CONFIGS)
def test_statistics_are_the_same_in_both_processes(kind, job_of, finished):
    first, second = (torch.load(finished(job_of(kind, 2)) / f'buffers_{rank}.pth')
                     for rank in (0, 1))
    names = [name for name in first if 'running_' in name]
    assert len(names) > 20 and first.keys() == second.keys()
    assert [name for name in names if not torch.equal(first[name], second[name])] == []
