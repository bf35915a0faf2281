"""Batch norms of two processes are those of one: the function, and shipped configs as they are."""


import pytest
import torch

from long_form import few
from . import batch_norm_job as job

SGD = dict(type='SGD', lr=0.02, momentum=0.9, weight_decay=0.01, _delete_=True)
FEW = {'train_dataloader.dataset.indices': list(range(0, 1437, 24)),
       'val_dataloader.dataset.indices': list(range(0, 360, 12)),
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
}, 'search')
# one batch, of images of one size: a process pads those of its batch to the largest of them
DETECTOR = ('configs/dcs/detection/dcs-ssdlite_mobilevit-mini_dense_1xb8_digit-scenes.py', {
    'train_dataloader.dataset.indices': list(range(4)), 'train_cfg.max_epochs': 1,
    'train_dataloader.dataset.pipeline.2.ratio_range': (1., 1.),
    'val_dataloader.dataset.indices': list(range(2)), 'default_hooks.logger.interval': 1})


@pytest.fixture(scope='module')
def both(run_jobs, tmp_path_factory):
    """What a whole batch gives in one process, and its two parts in two."""
    out = tmp_path_factory.mktemp('batch_norm')
    assert run_jobs([dict(words=['python', job.__file__, str(out)], cwd=str(out), work_dir=str(out),
                          processes=2)]) == [0]
    whole = {name: job.run(layer, batch, 6) for name, layer, batch in job.cases()}
    return whole, *(torch.load(out / f'{rank}.pth') for rank in (0, 1))


def test_outputs_gradients_and_statistics(both):
    whole, first, second = both
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
        path, options = CONFIGS.get(kind) or DETECTOR
        options = {key: dict(value, data_root=digits_root) if key.endswith('.dataset') else value
                   for key, value in options.items()}
        batch = 4 if kind == 'detector' else 8
        return dict(config=path, precise=kind != 'detector', buffers=True, processes=processes,
                    options={**options, 'train_dataloader.batch_size': batch // processes})

    return make


@pytest.mark.parametrize('kind', CONFIGS)
def test_two_processes_are_one(kind, job_of, finished, close_runs, logged):
    one, two = close_runs(*(finished(job_of(kind, processes)) for processes in (1, 2)))
    assert len([name for name in one['state_dict'] if name.endswith('running_var')]) > 10
    assert logged(one)['val/accuracy/top1'] == logged(two)['val/accuracy/top1']


@pytest.mark.parametrize('kind', [*CONFIGS, 'detector'])
def test_statistics_are_the_same_in_both_processes(kind, job_of, finished):
    first, second = (torch.load(finished(job_of(kind, 2)) / f'buffers_{rank}.pth')
                     for rank in (0, 1))
    names = [name for name in first if 'running_' in name]
    assert len(names) > 20 and first.keys() == second.keys()
    assert [name for name in names if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize('kind', CONFIGS)
def test_two_resumed_processes_are_the_unbroken_ones(kind, job_of, finished, same_runs):
    job = job_of(kind, 2)
    unbroken = finished(job)
    same_runs(unbroken, finished(dict(job, resume=True, options={
        **job['options'], 'load_from': f'{unbroken}/epoch_1.pth'})))


def test_a_detectors_first_statistics_are_those_of_one_process(job_of, finished, last_checkpoint):
    """Its loss is a mean over a process's objects, so that later ones follow other weights."""
    one, two = (last_checkpoint(finished(job_of('detector', processes)))['state_dict']
                for processes in (1, 2))
    means = [name for name in one if name.endswith('running_mean')]
    assert len(means) > 20
    for name in means:
        variances = [state[name.replace('mean', 'var')] for state in (one, two)]
        torch.testing.assert_close(*variances, rtol=1e-4, atol=0, msg=name)
        assert ((one[name] - two[name]).abs() <= 1e-4 * variances[0].sqrt()).all(), name
