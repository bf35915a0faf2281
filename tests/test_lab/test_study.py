"""A study of two variants on 240 digits: table, reuse, resume, calls, refusals.

The short form of one that runs is tests/test_end_to_end/test_digits_study.py.
"""

import json
import statistics
from pathlib import Path

import pytest
import torch
import yaml
from mmengine.config import Config

from lab.commands import load_tool
from lab.digits import DigitsOptions, write_digits
from lab.run_settings import move_data
from lab.study import Study, StudyOptions
from lab.study_pipeline import StudyPipeline
from lab.study_report import summarise, table
from mmkcr.core.io import file_sha256

REPO = Path(__file__).parents[2]
DIGITS = f'{REPO}/configs/kcr/digits/kcr-'
DENSE = DIGITS + 'dense_{net}_1xb64_digits.py'
CONTENT = dict(
    title='A study', nets=['swin-mini'],
    input_shape=[3, 48, 48],
    stages=dict(
        dense=dict(train=DENSE),
        heavy=dict(train=DENSE, overrides={'optim_wrapper.optimizer.weight_decay': 0.5}),
        search=dict(train=DIGITS + 'search_{net}_1xb64_digits.py',
                    overrides={'model.architecture.backbone.gates.init': 0.25}),
        slim=dict(slim='search', target=0.8, divisor=8),
        noted=dict(call='json:dumps', config=DENSE, start='slim'),
        again=dict(train=DIGITS + 'retrain_{net}_no-kcr_1xb32_digits.py', start='slim',
                   from_scratch=True)),
    rows=dict(dense=dict(label='plain', config=DENSE, weights='dense'),
              heavy=dict(config=DENSE, weights='heavy'),
              slim=dict(config=DIGITS + 'deploy_{net}_1xb64_digits.py', weights='again')),
    columns={'accuracy/top1': 'top-1 (%)'})


def count_images(call):
    """The function of a call stage."""
    (call.folder / 'note.txt').write_text('made')
    return dict(structure=call.start.structure, times=call.arguments['times'],
                root=call.config.train_dataloader.dataset.data_root)


def write(path, **changes):
    path.write_text(yaml.safe_dump({**CONTENT, **changes}, sort_keys=False))
    return path


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp('study')
    write_digits(root / 'digits', DigitsOptions(train_scenes=1, val_scenes=1))
    for part, count in (('train', 24), ('val', 4)):
        for label in (root / 'digits' / part).iterdir():
            for file in sorted(label.iterdir())[count:]:
                file.unlink()
    return root


@pytest.fixture(scope='module')
def study(folder, request):
    stages = dict(CONTENT['stages'])
    stages['noted'] = dict(stages['noted'], call=f'{__name__}:count_images',
                           arguments=dict(times=3))
    return Study(write(folder / 'study.yml', stages=stages))


@pytest.fixture(scope='module')
def options(folder):
    return StudyOptions(str(folder / 'work'), str(folder / 'digits'), epochs_factor=0.0625)


@pytest.fixture(scope='module')
def results(study, options):
    return [StudyPipeline(study, 'swin-mini', seed, options).run() for seed in (0, 1)]


@pytest.mark.long
def test_rows_have_mean_and_deviation_over_the_seeds(study, results):
    rows = {row['row']: row for row in summarise(study, results)}
    assert list(rows) == ['dense', 'heavy', 'slim'] and rows['heavy']['label'] == 'heavy'
    for name, row in rows.items():
        top1 = [result['rows'][name]['metrics']['accuracy/top1'] for result in results]
        assert row['seeds'] == [0, 1] and row['by_seed']['accuracy/top1'] == top1
        assert row['mean']['accuracy/top1'] == pytest.approx(sum(top1) / 2)
        assert row['std']['accuracy/top1'] == pytest.approx(statistics.stdev(top1))
    markdown = table(study, list(rows.values()), markdown=True)
    mean, macs = (rows['dense']['mean'][key] for key in ('accuracy/top1', 'macs'))
    assert f'| swin-mini | plain | 306.3 | {macs / 1e6:.2f} | {mean:.2f} ± ' in markdown
    assert 'A study; seeds [0, 1]' in table(study, list(rows.values()))


@pytest.mark.long
def test_overrides_and_starts_reach_the_trainings(study, options, results, folder):
    stages = results[0]['stages']
    hashes = {name: file_sha256(stages[name]['checkpoint']) for name in ('dense', 'heavy')}
    assert hashes['dense'] != hashes['heavy']
    search = torch.load(stages['search']['checkpoint'], weights_only=False)
    alpha = [value for key, value in search['state_dict'].items() if key.endswith('alpha')]
    assert alpha and all((value - 0.25).abs().max() < 0.1 for value in alpha)  # 0.5 otherwise
    work = folder / 'work' / 'swin-mini' / 'seed0'
    assert stages['noted'] == dict(structure=str(work / 'slim' / 'structure.json'), times=3,
                                   root=str(folder / 'digits'))
    assert (work / 'noted' / 'note.txt').is_file()
    record = json.loads((work / 'again' / 'stage.json').read_text())
    assert record['inputs']['start'] == stages['slim']['digests'][:1]  # structure, no weights


def run_again(study, options):
    """What a run gives, and the stages that it speaks of; of one with a number, an epoch."""
    said = []
    found = StudyPipeline(study, 'swin-mini', 0, options, lambda *news: said.append(news)).run()
    assert not [news for news in said if news[4] is not None], 'an epoch was trained again'
    return found['rows'], [news[1] for news in said]


@pytest.mark.long
def test_a_second_run_reuses_and_a_stopped_one_goes_on(study, options, results, folder):
    record = folder / 'work' / 'swin-mini' / 'seed0' / 'heavy' / 'stage.json'
    content = json.loads(record.read_text())
    record.write_text(json.dumps({key: content[key] for key in ('key', 'inputs')}))
    assert run_again(study, options) == (results[0]['rows'], [
        *CONTENT['stages'], *(f'evaluate-{name}' for name in CONTENT['rows'])])


@pytest.mark.long
def test_the_command(folder, study, results, capfd):
    file = write(folder / 'one.yml')
    load_tool('study').main([
        str(file), '--work-dir', str(folder / 'work'), '--data-root', str(folder / 'digits'),
        '--epochs-factor', '0.0625', '--jobs', '1', '--rows', 'dense'])
    summary = json.loads((folder / 'work' / 'summary.json').read_text())
    assert summary['rows'][0]['std']['accuracy/top1'] is None
    assert summary['runs'][0]['rows']['dense'] == results[0]['rows']['dense']
    assert summary['machine']['torch'] == torch.__version__ and summary['study'] == 'one.yml'
    assert (folder / 'work' / 'table.md').read_text().count('\n') == 3
    assert 'plain' in capfd.readouterr().out


@pytest.mark.long
def test_some_rows_have_the_stages_that_they_need(study, options, results):
    assert list(Study(study.path, ['slim', 'dense']).stages) == ['dense', 'search', 'slim', 'again']
    some = Study(study.path, ['slim'])
    assert list(some.stages) == ['search', 'slim', 'again']
    # they are those of the whole study: nothing is done again
    rows, stages = run_again(some, options)
    assert rows == {'slim': results[0]['rows']['slim']} and stages
    for rows, wrong in ((['slim', 'no'], '`no`'), ([], 'none')):
        with pytest.raises(ValueError, match=f'rows among .*heavy.* found {wrong}'):
            Study(study.path, rows)


@pytest.mark.parametrize('changes, message', [
    (dict(stages=dict(a=dict(train=DENSE, start='b'), b=dict(train=DENSE))),
     r'expected `start` of stage `a` among the stages \[\] before it, found `b`'),
    (dict(stages=dict(a=dict(start='b'))), r"one of \['call', 'slim', 'train'\] in stage `a`"),
    (dict(stages=dict(a=dict(train=DENSE, lr=1))), 'with `lr`'),
    (dict(rows=dict(a=dict(weights='dense'))), 'without `config`'),
    (dict(rows=dict(a=dict(config=DENSE, weights='kcr'))), 'found `kcr`'),
    (dict(measures=['speed']), 'measures among .* found `speed`'),
])
def test_refusals(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        Study(write(tmp_path / 'bad.yml', **changes))


def test_stages_whose_files_are_read_are_kept(tmp_path):
    stages = dict(
        dense=dict(train=DENSE), other=dict(train=DENSE), scores=dict(call='a:b', config=DENSE),
        learned=dict(train=DENSE, options={'a.scores': '{stages}/scores/scores.json'}),
        made=dict(call='a:b', config=DENSE, start='learned', arguments=dict(weights='dense')))
    rows = dict(made=dict(config=DENSE, weights='made'), other=dict(config=DENSE, weights='other'))
    path = write(tmp_path / 'study.yml', stages=stages, rows=rows)
    assert list(Study(path, ['made']).stages) == ['dense', 'scores', 'learned', 'made']
    stages['made']['arguments']['weights'] = 'late'
    with pytest.raises(ValueError, match='`arguments.weights` of stage `made` .* found `late`'):
        Study(write(tmp_path / 'bad.yml', stages=stages, rows=rows))


def test_a_config_of_a_stage_is_found_from_the_folder_that_one_works_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the study names its configs from its own folder
    made = Path('work/swin-mini/seed0/closed/config.py')
    made.parent.mkdir(parents=True)
    Config.fromfile(REPO / 'configs/kcr/digits' / DENSE.format(net='swin-mini')).dump(made)
    pipeline = StudyPipeline(Study(write(tmp_path / 'study.yml')), 'swin-mini', 0,
                             StudyOptions('work', 'data/digits', epochs_factor=0.0625))
    assert pipeline.config('{stages}/closed/config.py').model.type == 'ImageClassifier'


FILES = sorted(p for p in (REPO / 'configs').rglob('*.yml') if p.name != 'metafile.yml')
assert {'dcs-study_ablation_digits', 'dcs-study_eta_digits'} <= {path.stem for path in FILES}


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.stem)
def test_studies_of_the_project_name_configs_that_are_there(path):
    study = Study(path)
    entries = [*study.stages.values(), *study.rows.values()]
    names = {entry[key] for entry in entries for key in ('train', 'config') if key in entry}
    assert names and study.nets
    for net in study.nets:
        for name in names:
            assert name.startswith('{stages}/') or study.file(name, net).is_file(), name


def test_paths_are_moved():
    config = dict(a='data/digits/scenes/', b=['data/digits', ('data/digitsx', 1)])
    assert move_data(config, 'data/digits', '/tmp/x') == dict(
        a='/tmp/x/scenes/', b=['/tmp/x', ('data/digitsx', 1)])
