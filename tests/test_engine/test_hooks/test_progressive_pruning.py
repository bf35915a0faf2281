"""Pruning while training: the budget, an exact resume, two processes, averages, refusals."""

import logging
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import BaseDataset, ConcatDataset, InfiniteSampler, RepeatDataset
from torch.utils.data import DataLoader

from long_form import few
from mmkcr.apis import count_macs, slim
from mmkcr.apis.slim_files import slim_files
from mmkcr.core import count_params
from mmkcr.core.products import state_bytes
from mmkcr.datasets import DatasetPart
from mmkcr.methods.ofb import progressive_pruning
from mmkcr.models.slicing import apply_decisions
from mmkcr.models.tasks import search_space
from mmkcr.registry import HOOKS, MODELS

SHAPE = (3, 32, 32)
TARGETS = {'pruning': (0.25, 0.4, 0.65, 0.9), 'swin_pruning': (0.25, 0.9),
           'resnet_pruning': (0.25, 0.9)}
CASES = few([(kind, target) for kind, targets in TARGETS.items() for target in targets],
            ('pruning', 0.25), ('swin_pruning', 0.9), ('resnet_pruning', 0.25))
SHORT = {'train_cfg.max_epochs': 2}
SGD = {'optim_wrapper.optimizer': dict(type='SGD', lr=0.05, momentum=0.9, _delete_=True),
       'optim_wrapper.architecture': dict(lr=1., momentum=0.5), 'optim_wrapper.paramwise_cfg': None,
       'model.architecture.backbone.drop_path_rate': 0.}


#: Run by test_exact_resume.py, too, which kills it.
WHOLE = dict(kind='pruning', options={'custom_hooks.4.eta': 0.95})


def job_of(kind, target):
    return dict(kind=kind, options={**SHORT, 'model.price.target': target})


@pytest.mark.parametrize('kind, target', CASES)
def test_ends_inside_the_budget(finished, kind, target, last_checkpoint):
    folder = finished(job_of(kind, target))
    config = Config.fromfile(next(folder.glob('*.py'))).model
    model = MODELS.build(config)
    model.load_state_dict(last_checkpoint(folder)['state_dict'], strict=True)
    assert all(gate.folded and gate.decided for gate in model.gates().values())
    subnet, structure = slim(model, None, 1, SHAPE)
    dense, again = (MODELS.build(dict(config.architecture, backbone=dict(
        structure.backbone, structure=given))) for given in (None, structure))
    built = count_macs(again, SHAPE)
    assert built == count_macs(subnet, SHAPE) == structure.macs['subnet']
    assert structure.params == dict(dense=count_params(dense), subnet=count_params(again))
    assert 0.97 * target <= built / structure.macs['dense'] <= target
    # the search itself computes no more than the subnet by then
    assert count_macs(model.architecture, SHAPE) == built
    assert slim(model, target, 1, SHAPE)[1].sites == structure.sites
    with pytest.raises(ValueError, match='the search decided on'):
        slim(model, 0.9 * target, 1, SHAPE)


def test_sizes_of_the_dense_parent_are_told(finished, tmp_path):
    """The checkpoint's tensors are the subnet's by then."""
    folder = finished(job_of('pruning', 0.25))
    config = next(folder.glob('*.py'))
    found = slim_files(config, (folder / 'last_checkpoint').read_text(), out=tmp_path)
    backbone = dict(Config.fromfile(config).model.architecture.backbone, gates=None)
    dense = MODELS.build(dict(Config.fromfile(config).model.architecture, backbone=backbone))
    assert state_bytes(found.dense) == state_bytes(dense)
    assert found.structure.params['dense'] == count_params(dense)
    assert found.structure.params['subnet'] < 0.5 * found.structure.params['dense']


@pytest.mark.parametrize('kind', TARGETS)
def test_unreachable_target_is_refused_before_training(run_jobs, kind, tmp_path):
    assert run_jobs([dict(job_of(kind, 0.05), work_dir=str(tmp_path))]) == [1]
    text = (tmp_path / 'output.txt').read_text()
    assert 'ValueError: expected a target within the reachable' in text
    assert 'Epoch(train)' not in text and not list(tmp_path.glob('*.pth'))
    # the range is that of the smallest and the largest options
    model = MODELS.build(Config.fromfile(next(tmp_path.glob('*.py'))).model)
    macs = model.macs_model()
    ends = [macs({site: int(end(gate.option_sizes())) for site, gate in model.gates().items()})
            for end in (torch.min, torch.max)]
    found = re.search(r'reachable (\S+)G to (\S+)G MACs', text).groups()
    assert [float(end) * 1e9 for end in found] == pytest.approx(ends, rel=1e-5)
    assert 0.05 * ends[1] < ends[0] and ends[1] == macs.dense


def test_what_is_there_falls_and_averages_have_its_shapes(finished, last_checkpoint, logged):
    checkpoint = last_checkpoint(finished(WHOLE))
    present = logged(checkpoint)['train/macs_present']
    assert len(set(present)) > 3 and present == sorted(present, reverse=True)
    # the checkpoint that a killed run goes on from, of iteration 9, is of a sliced network
    assert present[10] < present[0] and present[-1] < present[10]
    for name, value in checkpoint['state_dict'].items():
        assert checkpoint['ema_state_dict'][f'module.{name}'].shape == value.shape
    differing = [name for name, value in checkpoint['state_dict'].items()
                 if not torch.equal(checkpoint['ema_state_dict'][f'module.{name}'], value)]
    assert len(differing) > 20


def test_two_processes_are_one(finished, close_runs):
    single, _ = close_runs(*(finished(dict(kind='pruning', processes=8 // size, options={
        **SGD, **SHORT, 'train_dataloader.batch_size': size})) for size in (8, 4)), 1e-4)
    assert all(bool(value) for name, value in single['state_dict'].items()
               if name.endswith('folded'))


def test_the_choice_is_logged(finished):
    """With its probability; and a warning names what the budget forced, and only then."""
    for kind, target in CASES:
        text = (finished(job_of(kind, target)) / 'output.txt').read_text()
        said = re.findall(r'had a probability of (\S+) at least and of (\S+) on average', text)
        assert len(said) == 1
        least, mean = map(float, said[0])
        assert 0 < least <= mean <= 1
        forced = re.findall(r'forced options that are less likely than others at (\d+) of (\d+) '
                            r'open sites: (.*)', text)
        for count, among, sites in forced:
            pairs = re.findall(r'\((\S+) instead of (\S+)\)', sites)
            assert len(pairs) == int(count) <= int(among)
            assert all(float(found) <= float(best) for found, best in pairs)
        assert forced or (kind, target) != ('pruning', 0.25)


@pytest.mark.parametrize('options', [dict(interval=0), dict(eta=1.), dict(share=0.)])
def test_wrong_arguments(options):
    with pytest.raises(ValueError, match='of ProgressivePruningHook, found'):
        HOOKS.build(dict(type='ProgressivePruningHook', **options))


def test_events_keep_a_network_within_the_budget(finished):
    """Whatever the probabilities, no event leaves options that cannot meet the target."""
    hook = HOOKS.build(dict(type='ProgressivePruningHook', eta=0.9))
    # the target is half of the MACs
    model = MODELS.build(Config.fromfile(next(finished(WHOLE).glob('*.py'))).model)
    for gate in model.gates().values():  # all of the probability at the largest option
        gate.alpha.data[-1, -1] += 9.
    left = []
    for _ in range(6):
        hook._prune(model)
        apply_decisions(search_space(model).sites)
        left.append(sum(int(gate.alive.sum()) for gate in model.gates().values()))
        hook._choose(model)
    assert left[-1] > len(model.gates()) and left[0] < 17 + 2 * 2 * 7
    hook._decide(model, logging.getLogger('test')), apply_decisions(search_space(model).sites)
    share = count_macs(model.architecture, SHAPE) / model.macs_model().dense
    assert 0.97 * 0.5 <= share <= 0.5


@pytest.mark.parametrize('processes, length', [(1, 9), (2, 5)])
def test_an_epoch_is_one_pass_over_different_samples(monkeypatch, processes, length):
    """Neither copies of samples, nor the length of an infinite sampler, put events off."""
    monkeypatch.setattr(progressive_pruning, 'get_world_size', lambda: processes)
    class Numbers(BaseDataset):
        def load_data_list(self):
            return [dict(number=number) for number in range(36)]

    whole = Numbers()
    for dataset in (whole, RepeatDataset(whole, 40000),
                    DatasetPart(RepeatDataset(whole, 2), range(40)),
                    ConcatDataset([dict(type='RepeatDataset', dataset=Numbers(indices=10), times=7),
                                   Numbers(indices=26)])):
        loader = DataLoader(dataset, 4, sampler=InfiniteSampler(dataset, seed=0))
        runner = SimpleNamespace(train_dataloader=loader)
        assert progressive_pruning._epoch_length(runner) == length
