"""tools/cross_validate.py: folds are dealt, run once, resumed and averaged."""

import json
import shutil
import statistics

import pytest
from mmengine.config import Config

from lab.folds import Deal, fold_config
from mmkcr.methods.search.bilevel import BilevelTrainLoop

STUDY = ('--grid', 'model.price.weight=0.1,0.4', '--folds', 2, '--fraction', 0.2)


@pytest.mark.long
def test_study_runs_once_and_goes_on(run_tool, search_config, tmp_path, monkeypatch):
    """What is finished is not run again; what is missing is, and gives the same number."""
    printed = run_tool('cross_validate', search_config, *STUDY, '--metric', 'accuracy/top1')
    folder = tmp_path / 'work_dirs' / 'tiny-search' / 'cross_validation'
    stages = sorted(folder.rglob('stage.json'))
    assert [path.parent.name for path in stages] == ['fold_0', 'fold_1'] * 2
    assert not list(folder.rglob('*.pth'))
    values = [json.loads(path.read_text())['result']['metrics']['accuracy/top1'] for path in stages]
    summary = json.loads((folder / 'summary.json').read_text())
    for number, score in enumerate(summary['scores']):
        assert score['values'] == {'model.price.weight': (0.1, 0.4)[number]}
        found = values[2 * number:2 * number + 2]
        assert score['folds'] == found and 0 <= min(found) <= max(found) <= 100
        assert score['mean'] == pytest.approx(statistics.mean(found))
        assert score['std'] == pytest.approx(statistics.stdev(found))
    means = [score['mean'] for score in summary['scores']]
    assert summary['best'] == summary['scores'][means.index(max(means))]
    (weight, ) = summary['best']['values'].values()
    assert f'Best: model.price.weight = {weight}' in printed

    epochs, run_epoch = [], BilevelTrainLoop.run_epoch

    def spy(loop):
        epochs.append(loop.epoch)
        run_epoch(loop)

    monkeypatch.setattr(BilevelTrainLoop, 'run_epoch', spy)
    again = run_tool('cross_validate', search_config, *STUDY)
    assert not epochs and printed.endswith(again)  # the hosts' notices came first
    shutil.rmtree(stages[1].parent)
    run_tool('cross_validate', search_config, *STUDY)
    assert epochs == [0] and json.loads((folder / 'summary.json').read_text()) == summary


def test_held_out_side_has_the_test_transforms_and_no_landmarks_too_many():
    config = Config(dict(
        train_dataloader=dict(dataset=dict(type='mmkcr.ClassSubset', num_classes=100, dataset=dict(
            type='ImageNet', split='train', pipeline=[dict(type='RandomFlip')]))),
        val_dataloader=dict(dataset=dict(type='mmkcr.ClassSubset', num_classes=100, dataset=dict(
            type='ImageNet', split='val', pipeline=[dict(type='CenterCrop')]))),
        train_cfg=dict(type='mmkcr.BilevelTrainLoop', max_epochs=9, val_interval=4),
        custom_hooks=[dict(type='mmkcr.NystromRefreshHook', landmarks=60)]))
    found = fold_config(config, Deal(0.1, 5, 7), 3, 100)
    train, val = (found[f'{side}_dataloader'].dataset for side in ('train', 'val'))
    assert train.type == val.type == 'mmkcr.FoldPart'
    assert (train.fraction, train.folds, train.fold, train.seed) == (0.1, 5, 3, 7)
    assert val.held_out and not train.get('held_out')
    assert train.dataset == config.train_dataloader.dataset
    assert val.dataset.dataset.split == 'train'  # the validation set is not touched
    assert val.dataset.dataset.pipeline == [dict(type='CenterCrop')]
    assert found.train_cfg.val_interval == 9  # validated once, at the end
    assert found.custom_hooks[0].landmarks == 60  # of the 70 that train the weights
    assert fold_config(config, Deal(0.1, 5, 7), 3, 80).custom_hooks[0].landmarks is None
    assert config.train_cfg.val_interval == 4


def test_refusals_write_nothing(refused, write_config, search_config):
    missing = write_config('train_dataloader["dataset"]["data_root"] = "no/such"\n')
    for args, message in [
        ((search_config, ), 'at least one grid with a value'),
        ((search_config, '--preset', 'lambda', '--grid', 'model.price.weight=1'), 'once'),
        ((search_config, '--grid', 'model.price.weight=-1'), 'non-negative price `weight`'),
        ((search_config, '--preset', 'rank', '--fraction', '0.01'), 'every class for 5 folds'),
        ((missing, '--preset', 'rank'), 'found no such folder'),
    ]:
        assert message in refused('cross_validate', *args), message
