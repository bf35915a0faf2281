"""Two processes are one process with the same global batch."""

import importlib.util
from pathlib import Path

import pytest
import torch

from long_form import few

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
KINDS = few(dict(search=SEARCH, retrain=RETRAIN, **MASKED), 'search', 'masked_retrain')


@pytest.fixture(scope='module')
def work_dirs(run_jobs, tmp_path_factory):
    """Work directories of one process and of two, by kind of run."""
    root = tmp_path_factory.mktemp('distributed')
    jobs = [dict(kind=kind, work_dir=str(root / f'{kind}{size}'), processes=8 // size,
                 options={**options, 'train_dataloader.batch_size': size})
            for kind, options in KINDS.items() for size in (8, 4)]
    assert run_jobs(jobs) == [0] * len(jobs)
    return {kind: [str(root / f'{kind}{size}') for size in (8, 4)] for kind in KINDS}


@pytest.fixture(params=KINDS)
def pair(request, work_dirs, last_checkpoint):
    """Kind of run, last checkpoint of one process, and of two."""
    return request.param, *map(last_checkpoint, work_dirs[request.param])


def test_weights_gates_bases_and_averages(pair):
    kind, single, double = pair
    for key in ('state_dict', 'ema_state_dict'):
        assert single[key].keys() == double[key].keys()
        for name, value in single[key].items():
            other = double[key][name]
            if name.endswith('kcr.basis'):  # a basis is one up to rotations of its subspace
                value, other = value @ value.T, other @ other.T
            torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-5, msg=name)
    alphas = [value for name, value in double['state_dict'].items() if name.endswith('alpha')]
    assert len(alphas) == (2 if kind.endswith('search') else 0)
    assert all(alpha.unique().numel() > 4 for alpha in alphas)
    biases = [value for name, value in double['state_dict'].items() if name.endswith('mask.bias')]
    assert len(biases) == (2 if kind.startswith('masked') else 0)
    assert all(bias.unique().numel() > 4 for bias in biases)  # the masks are trained


def test_validation(pair, logged):
    _, single, double = pair
    assert logged(single)['val/accuracy/top1'] == logged(double)['val/accuracy/top1']


def test_losses_that_are_ratios_and_roots_of_sums(run_jobs, tmp_path):
    """Their values are those of one process, and so is the mean of their gradients."""
    path = Path(__file__).with_name('loss_job.py')
    assert run_jobs([dict(words=['python', str(path), str(tmp_path)], cwd=str(tmp_path),
                          work_dir=str(tmp_path), processes=2)]) == [0]
    spec = importlib.util.spec_from_file_location('loss_job', path)
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    whole = job.run(slice(None))
    first, second = (torch.load(tmp_path / f'{rank}.pth') for rank in (0, 1))
    assert len(whole) == 3
    for name, (value, gradients) in whole.items():
        assert first[name][0] == second[name][0]
        torch.testing.assert_close(first[name][0], value, rtol=1e-5, atol=0, msg=name)
        for one, two, wanted in zip(first[name][1], second[name][1], gradients):
            assert wanted.abs().max() > 1e-3, name
            torch.testing.assert_close((one + two) / 2, wanted, rtol=1e-4, atol=1e-6, msg=name)
