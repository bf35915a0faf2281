"""tools/cross_validate.py: folds are dealt, run once, resumed and averaged."""

import statistics

import pytest
from mmengine.config import Config

from lab import cross_validate as library
from lab.folds import Deal, fold_config, run_fold
from mmkcr.apis.build import load_config
from mmkcr.engine.loops import BilevelTrainLoop

STUDY = ('--grid', 'model.price.weight=0.1,0.4', '--folds', 2, '--fraction', 0.2)


@pytest.mark.long
def test_study_runs_once_and_goes_on(run_tool, search_config, tmp_path, read_json, monkeypatch):
    printed = run_tool('cross_validate', search_config, *STUDY, '--metric', 'accuracy/top1')
    folder = tmp_path / 'work_dirs' / 'tiny-search' / 'cross_validation'
    assert sorted(path.name for path in folder.iterdir()) == ['results.json', 'summary.json']
    rows = read_json(folder / 'results.json')['results']
    assert [(row['values'], row['fold']) for row in rows] == [
        ({'model.price.weight': weight}, fold) for weight in (0.1, 0.4) for fold in (0, 1)]
    summary = read_json(folder / 'summary.json')
    for number, score in enumerate(summary['scores']):
        values = [row['metrics']['accuracy/top1'] for row in rows[2 * number:2 * number + 2]]
        assert score['folds'] == values and 0 <= min(values) <= max(values) <= 100
        assert score['mean'] == pytest.approx(statistics.mean(values))
        assert score['std'] == pytest.approx(statistics.stdev(values))
    means = [score['mean'] for score in summary['scores']]
    assert summary['best'] == summary['scores'][means.index(max(means))]
    (weight, ) = summary['best']['values'].values()
    assert f'Best: model.price.weight = {weight}' in printed

    # what is finished is not run again; what is missing is, and gives the same number
    calls, original = [], library.run_fold

    def spy(config, run_folder):
        calls.append((config.model.price.weight, config.train_dataloader.dataset.fold))
        return original(config, run_folder)

    monkeypatch.setattr(library, 'run_fold', spy)
    again = run_tool('cross_validate', search_config, *STUDY)
    assert not calls and printed.endswith(again)  # the hosts' notices came first
    content = read_json(folder / 'results.json')
    lost = content['results'].pop(1)
    (folder / 'results.json').write_text(library.json.dumps(content))
    run_tool('cross_validate', search_config, *STUDY)
    assert calls == [(0.1, 1)]
    assert read_json(folder / 'results.json')['results'][-1] == lost


@pytest.mark.long
def test_interrupted_fold_goes_on(search_config, tmp_path, monkeypatch):
    """A run stopped in its second epoch trains that epoch only, and ends the same."""
    config = load_config(search_config, {'train_cfg.max_epochs': 2})
    config = fold_config(config, Deal(0.2, 2, 0), 0, 143)
    expected = run_fold(config, tmp_path / 'unbroken')
    epochs, run_epoch = [], BilevelTrainLoop.run_epoch

    def stop_in_the_second(loop):
        epochs.append(loop.epoch)
        if loop.epoch == 1 and len(epochs) == 2:
            raise KeyboardInterrupt
        run_epoch(loop)

    monkeypatch.setattr(BilevelTrainLoop, 'run_epoch', stop_in_the_second)
    with pytest.raises(KeyboardInterrupt):
        run_fold(config, tmp_path / 'broken')
    assert run_fold(config, tmp_path / 'broken') == expected != {}
    assert epochs == [0, 1, 1]


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
        ((search_config, '--grid', 'model.cost.weight=1,2'), 'found no `cost` among'),
        ((search_config, '--grid', 'model.price.weight=1:2'), 'expected a grid'),
        ((search_config, '--preset', 'lambda', '--grid', 'model.price.weight=1'), 'once'),
        ((search_config, '--grid', 'model.price.weight=-1'), 'non-negative price `weight`'),
        ((search_config, '--preset', 'rank', '--folds', 1), '`--folds` of at least 2'),
        ((search_config, '--preset', 'rank', '--fraction', 2), 'found 2'),
        ((search_config, '--preset', 'rank', '--fraction', '0.01'), 'stratified|every class'),
        ((missing, '--preset', 'rank'), 'found no such folder'),
    ]:
        line = refused('cross_validate', *args)
        assert any(part in line for part in message.split('|')), line


@pytest.mark.long
def test_results_of_other_settings_are_refused(load_tool, capsys, search_config, tmp_path,
                                               monkeypatch):
    monkeypatch.setattr(library, 'run_fold', lambda *_: {'accuracy/top1': 50.})
    args = [search_config, '--grid', 'model.price.weight=0.1', '--fraction', '0.2', '--folds',
            '2', '--work-dir', str(tmp_path)]
    load_tool('cross_validate').main(args)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for other in (['--seed', '1'], ['--cfg-options', 'train_cfg.max_epochs=3']):
        with pytest.raises(SystemExit):
            load_tool('cross_validate').main(args + other)
        assert 'results of the same settings' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        load_tool('cross_validate').main(args + ['--metric', 'loss'])
    assert "the metric `loss` of the evaluator, found ['accuracy/top1']" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
