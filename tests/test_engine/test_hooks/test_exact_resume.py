"""A run killed and resumed is the unbroken run, bit for bit."""

import json
import signal
from pathlib import Path

import pytest
import torch

from long_form import few

# kind, the iteration after which SIGKILL comes (within an epoch, and not on a checkpoint)
CASES = few(dict(search=22, retrain=22, iterations=18, iterated_search=18, masked_search=22,
                 masked_retrain=22), 'retrain', 'iterated_search', 'masked_search')
# a regulariser and its state in the checkpoint: KCR's, and that of DCS's runs with masks
STATES = dict(kcr={'basis'}, ib={'centroids', 'log_q'})


@pytest.fixture(scope='module')
def runs(run_jobs, tmp_path_factory):
    """Work directories of an unbroken and of a killed and resumed run of every kind."""
    root = tmp_path_factory.mktemp('runs')
    jobs, expected = [], []
    for kind, kill in CASES.items():
        unbroken, broken = str(root / f'{kind}_unbroken'), str(root / f'{kind}_broken')
        # the resumed half has other workers, which must not matter
        other = {'train_dataloader.num_workers': 1, 'train_dataloader.persistent_workers': False}
        jobs += [dict(kind=kind, work_dir=unbroken),
                 dict(kind=kind, work_dir=broken, kill=kill),
                 dict(kind=kind, work_dir=broken, resume=True, options=other)]
        expected += [0, -signal.SIGKILL, 0]
    statuses = run_jobs(jobs)
    for job, status, wanted in zip(jobs, statuses, expected):
        assert status == wanted, (job, Path(job['work_dir'], 'output.txt').read_text()[-3000:])
    return root


@pytest.fixture(params=CASES)
def kind(request):
    return request.param


@pytest.fixture
def pair(kind, runs, last_checkpoint):
    """Last checkpoints of the unbroken and of the resumed run."""
    return [last_checkpoint(runs / f'{kind}_{name}') for name in ('unbroken', 'broken')]


def term(kind):
    return 'ib' if kind.startswith('masked') else 'kcr'


def test_weights_gates_bases_and_averages(pair, kind):
    for key in ('state_dict', 'ema_state_dict'):
        unbroken, resumed = (checkpoint[key] for checkpoint in pair)
        assert unbroken.keys() == resumed.keys()
        for name, value in unbroken.items():
            assert torch.equal(value, resumed[name]), name
    state = f'regularizers.{term(kind)}.'
    assert {state + name for name in STATES[term(kind)]} <= pair[0]['state_dict'].keys()


def test_optimizers_and_schedules(pair):
    unbroken, resumed = (_flatten(checkpoint['optimizer']) for checkpoint in pair)
    assert len(unbroken) > 100 and unbroken.keys() == resumed.keys()
    for name, value in unbroken.items():
        other = resumed[name]
        assert torch.equal(value, other) if torch.is_tensor(value) else value == other, name


def test_every_logged_value(pair, kind, logged):
    unbroken, resumed = map(logged, pair)
    assert {'train/loss', f'train/loss_{term(kind)}', 'val/accuracy/top1'} <= unbroken.keys()
    assert unbroken == resumed


def test_written_logs(runs):
    """What the resumed run writes to its log is what the unbroken one wrote."""
    for kind in CASES:
        unbroken, resumed = (_log_lines(runs / f'{kind}_{name}')
                             for name in ('unbroken', 'broken'))
        assert len(unbroken) > 20
        assert unbroken == resumed


def test_without_a_seed_in_the_config(run_jobs, tmp_path, last_checkpoint, logged):
    """A seed that the run drew for itself is as good, samplers' own seeds included."""
    options = {'randomness.seed': None, 'train_cfg.max_epochs': 2,
               'train_dataloader.num_workers': 0, 'train_dataloader.persistent_workers': False}
    jobs = []
    for apart in (False, True):  # with the latter samplers draw seeds of their own
        options = {**options, 'randomness.diff_rank_seed': apart}
        first, second = (str(tmp_path / f'{name}{apart}') for name in ('first', 'second'))
        jobs += [dict(kind='search', work_dir=first, options=options),
                 dict(kind='search', work_dir=second, resume=True,
                      options={**options, 'load_from': f'{first}/epoch_1.pth'})]
    assert run_jobs(jobs) == [0] * 4
    checkpoints = [last_checkpoint(job['work_dir']) for job in jobs]
    assert len({checkpoint['meta']['seed'] for checkpoint in checkpoints}) == 2
    for one, other in zip(checkpoints[::2], checkpoints[1::2]):
        assert all(torch.equal(value, other['state_dict'][name])
                   for name, value in one['state_dict'].items())
        assert logged(one) == logged(other)


def test_search_moves_gates(runs, last_checkpoint):
    """The runs compared above do train what is compared."""
    for kind in {'search', 'iterated_search', 'masked_search'} & set(CASES):
        state = last_checkpoint(runs / f'{kind}_broken')['state_dict']
        alphas = [value for name, value in state.items() if name.endswith('alpha')]
        assert len(alphas) == 2 and all(alpha.unique().numel() > 4 for alpha in alphas)


def test_masks_and_clusters_move(runs, last_checkpoint):
    """Likewise, of the runs of DCS: the masks are trained, the clusters those of an epoch."""
    for kind in {'masked_search', 'masked_retrain'} & set(CASES):
        state = last_checkpoint(runs / f'{kind}_broken')['state_dict']
        biases = [value for name, value in state.items() if name.endswith('mask.bias')]
        assert len(biases) == 2 and all(bias.unique().numel() > 4 for bias in biases)
        assert state['regularizers.ib.refresh_step'] == 3


def _flatten(tree, prefix=''):
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    flat = {}
    for key, value in items:
        if isinstance(value, (dict, list, tuple)):
            flat.update(_flatten(value, f'{prefix}{key}.'))
        else:
            flat[f'{prefix}{key}'] = value
    return flat


def _log_lines(work_dir):
    """Lines of scalars.json by step; later runs overwrite what they repeat."""
    lines = {}
    for path in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        for line in map(json.loads, path.read_text().splitlines()):
            kind = 'val' if 'accuracy/top1' in line else 'train'
            lines[kind, line['step']] = {name: value for name, value in line.items()
                                         if name not in ('time', 'data_time', 'memory')}
    return lines
