"""The arena: intervals, equal training from the records, sizes of the narrow network, reuse."""

import json
import re

import numpy as np
import pytest
import torch
from mmengine.runner import Runner
from scipy import stats

from lab import arena_report
from lab.arena import (
    arena_study,
    cut,
    equal_batches,
    narrow_overrides,
    stages_of,
    write_study_file,
)
from lab.arena_methods import CONFIGS, METHODS, main_methods
from lab.arena_report import Interval, paired_interval, read_rows, summarise, table, write_report
from lab.arena_tasks import TASKS
from lab.stages import RECORD
from lab.study import Call, Study, StudyOptions
from lab.study_pipeline import StudyPipeline
from lab.torch_pruning import IMPORTANCES, torch_pruning_structure
from long_form import few
from mmkcr.apis import count_macs
from mmkcr.apis.compress_files import task_outputs
from mmkcr.closed_form.refit_structure import refit_structure
from mmkcr.engine.build import build_model, load_config
from mmkcr.models.counting import backbone_macs

NET = 'vit-nano'
SHAPE = (3, 32, 32)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp('arena')
    TASKS['digits-300'].write(root / 'data', 0)
    return root


@pytest.fixture(scope='module')
def content():
    return arena_study(NET, 0.5, ['random', 'refit-width', 'kcr'], 'digits-300')


@pytest.fixture(scope='module')
def pipeline(folder, content):
    for label in (folder / 'data' / 'val').iterdir():
        for file in sorted(label.iterdir())[3:]:
            file.unlink()
    study = Study(write_study_file(folder / 'study.yml', content),
                  ['50-random', '50-refit-width', '50-kcr'])
    return StudyPipeline(study, NET, 0, StudyOptions(str(folder), str(folder / 'data'), 0.05))


@pytest.fixture(scope='module')
def result(pipeline):
    return pipeline.run()


@pytest.mark.parametrize('seed', range(5))
def test_the_interval_is_that_of_the_paired_t_test(seed):
    rng = np.random.default_rng(seed)
    ours, theirs = rng.normal(90, 2, 5), rng.normal(88, 2, 5)
    found = paired_interval(dict(enumerate(ours)), dict(enumerate(theirs)))
    expected = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(ours - theirs))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx(tuple(expected))
    assert found.above == (expected.low > 0) and found.below == (expected.high < 0)


def test_only_seeds_of_both_are_paired():
    found = paired_interval({0: 3., 1: 5., 2: 100.}, {1: 1., 0: 1., 4: 7.})
    assert (found.mean, found.pairs) == (3., 2)
    assert paired_interval({0: 3.}, {0: 1.}) == Interval(2., None, 1)
    assert not paired_interval({0: 3.}, {0: 1.}).above  # one pair shows nothing
    assert paired_interval({0: 3.}, {1: 1.}) is None


def test_verdicts_follow_the_intervals(monkeypatch):
    def row(method, after, before=(), masks=(), kc=()):
        return dict(budget=0.5, method=method, macs=dict.fromkeys(range(3), 5),
                    after=dict(enumerate(after)), before=dict(enumerate(before)),
                    masks={seed: dict(open=97., always=60., forced=value)
                           for seed, value in enumerate(masks)}, kc=dict(enumerate(kc)))

    rows = [dict(row('dense', (99., 99., 99.)), budget=1., macs={0: 10}),
            row('random', (80., 82., 81.), (30., 31., 32.)), row('weight', (80., 82.1, 81.)),
            row('refit', (85., 87.2, 86.), (80., 81., 82.5)), row('kcr', (88., 90., 89.1)),
            row('ofb', (70., 71., 71.), (20., 20., 21.5))]
    plain = table(summarise(rows), markdown=True)
    assert 'forced open' not in plain and 'KC to' not in plain  # nobody has masks
    rows.append(row('kcr-plain', (88., 90., 89.), kc=(0.03, 0.04, 0.05)))
    rows[4]['kc'] = {0: 0.01, 1: 0.02, 2: 0.04}
    rows.append(row('dcs', (88., 90., 89.1), masks=(87., 89.2, 88.)))
    assert not any(entry['after_verdict'] for entry in summarise(rows))  # three seeds are too few
    monkeypatch.setattr(arena_report, 'LEAST_PAIRS', 3)
    found = {entry['method']: entry for entry in summarise(rows)}
    assert {name: entry['after_verdict'] for name, entry in found.items()} == dict(
        dense='', random='', weight='', refit='pays', kcr='pays, leads', ofb='costs',
        dcs='pays, leads', **{'kcr-plain': 'pays, leads'})
    assert found['refit']['before_verdict'] == 'pays' and found['ofb']['before_verdict'] == 'costs'
    assert found['kcr']['macs'] == 0.5 and found['random']['before'] == 31.
    text = table(list(found.values()), markdown=True)
    assert '| 50% | KCR | 50.0% |  |  | 89.03 ± 1.00 | +8.03 ± 0.14 |' in text
    assert text.count('| 97.0 | 60.0 | +0.97 ± 0.38 |') == 1  # what the masks of DCS bring
    # what KCR's term takes off KC: 0.02, 0.02 and 0.01
    assert '| 0.0233 ± 0.0153 | -0.0167 ± 0.0143 |' in text and '| 0.0400 ± 0.0100 |  |' in text


def test_differences_are_to_any_method_that_one_asks_for():
    def row(method, budget, *after):
        return dict(budget=budget, method=method, macs={0: 5}, after=dict(enumerate(after)),
                    before={}, masks={}, kc={})

    rows = [row('dense', 1., 90., 92., 94.), row('random', 0.5, 80., 81., 82.),
            row('random-width', 0.5, 83., 85., 87.), row('ofb', 0.5, 84., 85., 89.),
            row('ofb', 0.3, 70., 71., 72.)]
    summary = summarise(rows, ['dense', 'random-width'])
    assert 'to dense' not in table(summarise(rows))
    found = {(entry['method'], entry['budget']): entry['to'] for entry in summary}
    assert found['ofb', 0.5]['dense'] == paired_interval(rows[3]['after'], rows[0]['after'])
    assert found['ofb', 0.5]['random-width'] == paired_interval(rows[3]['after'],
                                                                rows[2]['after'])
    assert found['ofb', 0.3]['random-width'] is None  # not run at that budget
    assert found['ofb', 0.3]['dense'].mean == -21.
    assert found['dense', 1.] == {'dense': None, 'random-width': None}
    text = table(summary, markdown=True)
    assert '| to dense | to random units, width of heads |' in text
    assert '| -6.00 ± 2.48 | +1.00 ± 2.48 |' in text  # 84, 85, 89 to 90, 92, 94 and 83, 85, 87


@pytest.mark.parametrize('budget', [0.8, 0.7, 0.5, 0.3])
def test_the_narrower_network_is_within_the_budget_and_near_it(budget):
    config = load_config(CONFIGS / f'dense_{NET}.py')
    dense = count_macs(build_model(config), SHAPE)
    config.merge_from_dict(narrow_overrides(config, int(budget * dense)))
    assert 0.94 * budget * dense < count_macs(build_model(config), SHAPE) <= budget * dense


def test_a_budget_that_no_narrower_network_meets_is_refused():
    config = load_config(CONFIGS / f'dense_{NET}.py')
    with pytest.raises(ValueError, match='expected a budget that a narrower network meets'):
        narrow_overrides(config, 1000)
    with pytest.raises(ValueError, match='expected methods among'):
        arena_study(NET, 1.5, ['random'], 'digits-300')
    with pytest.raises(ValueError, match="expected a network of .*, found 'nothing'"):
        arena_study('nothing', 0.5, ['random'], 'digits-300')


@pytest.mark.parametrize('net, task, there, absent', [
    (NET, 'digits-300', ('kcr', 'dcs', 'dcs-warm', 'ofb'), ('torch-pruning', )),
    ('upernet-mini', 'scenes', ('narrow', 'kcr-warm-plain', 'dcs-warm', 'ofb-plain'),
     ('kcr', 'ofb')),
    ('mask-rcnn-mini', 'boxes', ('narrow', 'dcs-warm', 'ofb-plain'), ('dcs', 'ofb')),
    ('timm-vit-nano', 'digits-300', ('torch-pruning', 'refit'), ('kcr-warm', 'ofb'))])
def test_methods_are_those_that_the_network_has_configs_for(net, task, there, absent):
    found = main_methods(net)
    assert {'random', 'refit', *there} <= set(found) and not set(absent) & set(found)
    content = arena_study(net, 0.7, found, task)
    for stage in content['stages'].values():
        for key in ('train', 'config'):
            assert key not in stage or (CONFIGS / stage[key].replace('{net}', net)).is_file()
    absent = [name for name in absent if name in ('kcr', 'dcs', 'ofb', 'kcr-warm')]
    for name in absent:
        with pytest.raises(ValueError, match=f'that {net} has configs for, found {name!r} without'):
            arena_study(net, 0.7, ['random', name], task)


#: Networks of dense tasks: their task, and how many batches they are trained for.
DENSE = {'upernet-mini': ('scenes', 450), 'mask-rcnn-mini': ('boxes', 300)}


@pytest.mark.parametrize('net', DENSE)
@pytest.mark.parametrize('budget', few((0.7, 0.5, 0.3), 0.5))
def test_budgets_of_dense_tasks_are_of_the_backbone(budget, net):
    content = arena_study(net, budget, ['random', 'narrow'], DENSE[net][0])
    config = load_config(CONFIGS / f'dense_{net}.py')
    assert content['measures'] == ['masks', 'backbone'] and content['input_shape'] == [3, 128, 128]

    def backbone(overrides):
        config.merge_from_dict(overrides)
        return backbone_macs(build_model(config).backbone, (3, 128, 128))

    dense, at = backbone({}), round(100 * budget)
    stages = content['stages']
    assert stages[f'{at}-random-cut']['arguments']['target'] == int(budget * dense)
    narrow = stages[f'{at}-narrow']['overrides']
    assert backbone(narrow) <= budget * dense
    wider = dict(narrow['model.backbone.arch'])
    wider['embed_dims'] += 2
    assert backbone({'model.backbone.arch': wider}) > budget * dense
    backbone(narrow)
    assert stages[f'{at}-narrow']['start'] == f'{at}-narrow-backbone'
    assert stages['dense']['start'] == stages['start']['start'] == 'backbone'
    classifier = load_config(CONFIGS / f'backbone_{net}.py')
    classifier.merge_from_dict(stages[f'{at}-narrow-backbone']['overrides'])
    narrow, wide = build_model(classifier).backbone.state_dict(), build_model(config).backbone
    assert {name: value.shape for name, value in narrow.items()
            if not name.startswith('norm')} == \
        {name: value.shape for name, value in wide.state_dict().items()
         if not name.startswith('norm')}  # a dense task has one more, before its heads


@pytest.mark.parametrize('net', DENSE)
def test_dense_tasks_train_for_the_same_number_of_batches(net):
    content = arena_study(net, 0.6, main_methods(net), DENSE[net][0])
    results = {}
    for name, stage in content['stages'].items():
        if 'train' in stage:
            config = load_config(CONFIGS / stage['train'].replace('{net}', net),
                                 stage.get('options'))
            train = config.train_cfg
            schedulers = config.param_scheduler
            for part in schedulers.values() if isinstance(schedulers, dict) else [schedulers]:
                assert part[-1].end == train.get('max_iters', train.get('max_epochs')), name
            cooling = [hook['until'] for hook in config.get('custom_hooks') or ()
                       if hook['type'] == 'mmkcr.TemperatureDecayHook']
            bilevel = train.get('type') == 'mmkcr.IterBilevelTrainLoop'
            assert cooling == [train.get('max_iters')] * bilevel, name  # of the trial's length
            results[name] = dict(batches=train.max_iters * (2 if bilevel else 1)) \
                if 'max_iters' in train else dict(batches=0)
        else:
            results[name] = {}
    assert equal_batches(content, results) == DENSE[net][1]


def test_all_methods_train_for_the_same_number_of_batches():
    """From the configs, at their full length: 7 of 10 batches of an epoch are the weights'."""
    content = arena_study(NET, 0.7, list(METHODS), 'digits-300')
    results = {}
    for name, stage in content['stages'].items():
        if 'train' in stage:
            config = load_config(CONFIGS / stage['train'].replace('{net}', NET),
                                 stage.get('options'))
            cooling = [hook['until'] for hook in config.get('custom_hooks') or ()
                       if hook['type'] == 'mmkcr.TemperatureDecayHook']
            assert cooling in ([], [config.train_cfg.max_epochs]), name  # of the trial's length
            bilevel = config.train_cfg.get('type') == 'mmkcr.BilevelTrainLoop'
            assert config.train_dataloader.batch_size == 30
            results[name] = dict(batches=config.train_cfg.max_epochs * (14 if bilevel else 10))
        else:
            results[name] = {}
    assert equal_batches(content, results) == 720
    results['70-random']['batches'] += 1
    with pytest.raises(ValueError, match='expected the same number of batches'):
        equal_batches(content, results)


@pytest.mark.long
def test_the_records_count_the_batches_that_the_logs_show(result, pipeline, content):
    for name, stage in pipeline.study.stages.items():
        if 'train' in stage:
            logged = _last_logged(pipeline.folder / name)
            twice = 2 if name.endswith('-search') else 1
            assert result['stages'][name]['batches'] == twice * logged > 0, name
    assert set(stages_of(content, '50-kcr')) == {'50-kcr', '50-kcr-slim', '50-kcr-search'}
    assert list(stages_of(content, '50-random')) == ['50-random', '50-random-cut', 'start']


def _last_logged(folder):
    lines = ''.join(path.read_text() for path in folder.glob('*/*.log')).splitlines()
    found = [re.search(r'Epoch\(train\)\s+\[(\d+)\]\[\s*(\d+)/(\d+)\]', line) for line in lines]
    epoch, step, steps = max(tuple(map(int, match.groups())) for match in found if match)
    return (epoch - 1) * steps + step


@pytest.mark.long
def test_units_of_a_seed_are_the_same_for_all_that_draw_them(result, pipeline, tmp_path):
    def kept(variant, seed=0):
        return cut(Call(pipeline.config('start_{net}.py'), pipeline.start('start'), tmp_path, seed,
                        dict(variant=variant, target='50%', images=30)))['kept']

    random = result['stages']['50-random-cut']['kept']
    assert kept('random_refit') == random  # whatever images there are
    other = kept('random', 1)
    assert other != random and {name: len(units) for name, units in other.items()} == \
        {name: len(units) for name, units in random.items()}


@pytest.mark.long
def test_subnets_are_within_the_budget(result):
    dense = count_macs(build_model(load_config(CONFIGS / f'dense_{NET}.py')), SHAPE)
    for row in result['rows'].values():
        assert 0.4 * dense < row['macs'] <= 0.5 * dense


@pytest.mark.long
def test_a_second_call_goes_on_from_the_records(result, pipeline, monkeypatch):
    monkeypatch.setattr(Runner, 'train', None)
    monkeypatch.setattr(Runner, 'test', None)
    assert pipeline.run() == result


@pytest.mark.long
def test_the_report_reads_what_is_finished(result, folder, monkeypatch):
    rows = read_rows(folder / NET, [0.5, 0.3], list(METHODS), [0, 1])
    assert [row['method'] for row in rows] == ['random', 'refit-width', 'kcr']
    top1 = result['rows']['50-kcr']['metrics'][arena_report.METRIC]
    assert rows[-1]['after'] == {0: top1}
    write_report(folder, summarise(rows, ['dense']), rows, 'A title', note=1)
    written = json.loads((folder / 'summary.json').read_text())
    assert written['note'] == 1 and written['summary'][-1]['after'] == pytest.approx(top1)
    assert 'A title' in (folder / 'table.txt').read_text()
    assert (folder / 'accuracy_over_macs.png').stat().st_size > 5000


def test_records_give_percents_and_the_kernel_complexity(tmp_path):
    for name, metrics in (('dense', {'coco/bbox_mAP': 0.7}), ('50-random', {'coco/bbox_mAP': 0.25}),
                          ('50-random-before', {})):
        folder = tmp_path / 'seed0' / f'evaluate-{name}'
        folder.mkdir(parents=True)
        (folder / RECORD).write_text(json.dumps(dict(result=dict(
            metrics=metrics, macs=9, backbone=dict(macs=4), kernel=dict(kc=0.1)))))
    dense, random = read_rows(tmp_path, [0.5], ['random', 'refit'], [0, 1], 'coco/bbox_mAP')
    assert (dense['after'], random['after']) == ({0: 70.}, {0: 25.})
    assert random['before'] == {0: 0.}  # it finds nothing
    assert random['kc'] == {0: 0.1} and random['macs'] == {0: 4}
    assert '25.00' in table(summarise([dense, random]), metric='coco/bbox_mAP')


@pytest.mark.parametrize('importance', IMPORTANCES)
def test_torch_pruning_meets_the_budget_with_the_units_that_it_keeps(importance):
    """The weights that stay are those of the dense network."""
    config = load_config(CONFIGS / 'dense_timm-vit-nano.py')
    model, batch = build_model(config), dict(inputs=torch.rand(8, *SHAPE))
    dense = count_macs(model, SHAPE)
    structure = torch_pruning_structure(model, ('mlp_hidden', 'heads'), dense // 2, [batch],
                                        importance)
    result = refit_structure(model, structure, [batch], SHAPE, forward=task_outputs,
                             refit='none', progress=False)
    assert 0.45 * dense < count_macs(result.model, SHAPE) <= dense // 2
    before, after = (network.backbone.timm_model.model.blocks[0].mlp.fc1.weight
                     for network in (model, result.model))
    kept = structure.sites['timm_model.model.blocks.0.mlp.mlp_hidden'].kept
    assert torch.equal(before[list(kept)], after)
    norms = before.square().sum(1)
    lost = [unit for unit in range(len(norms)) if unit not in kept]
    if importance == 'magnitude':  # of both layers: larger ones stay on the whole
        assert norms[list(kept)].mean() > norms[lost].mean()


def test_torch_pruning_refuses_other_networks():
    model = build_model(load_config(CONFIGS / f'dense_{NET}.py'))
    with pytest.raises(ValueError, match='expected a ViT of timm for Torch-Pruning, found a '
                       '`VisionTransformer`'):
        torch_pruning_structure(model, ('heads', ), 1, [])
