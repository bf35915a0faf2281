"""The table of the digit scenes in runs of a few iterations: consistency, reuse, resume."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from mmkcr.apis import count_macs
from mmkcr.apis.build import load_weights
from mmkcr.apis.digit_scenes import TASKS, ScenesOptions, ScenesPipeline
from mmkcr.apis.expected import check_expected
from mmkcr.apis.pipeline import Start, deployed
from mmkcr.compression import Structure, count_params
from mmkcr.datasets.digits import DigitsOptions, write_digits

REPO = Path(__file__).parents[2]
FACTOR = 1 / 50  # 3 iterations of a detector, 18 of a segmentor
SHAPE = (3, 128, 128)


@pytest.fixture(scope='module')
def tool():
    path = REPO / 'tools' / 'benchmarks' / 'digit_scenes.py'
    spec = importlib.util.spec_from_file_location('digit_scenes_tool', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp('digit_scenes')
    write_digits(root / 'digits', DigitsOptions(train_scenes=32, val_scenes=8))
    return root


@pytest.fixture(scope='module')
def call(tool, folder):
    def run(*more):
        tool.main(['--work-dir', str(folder / 'work'), '--data-root', str(folder / 'digits'),
                   '--factor', str(FACTOR), *more])
        return json.loads((folder / 'work' / 'summary.json').read_text())
    return run


@pytest.fixture(scope='module')
def summary(call):
    return call('--jobs', '2')


@pytest.fixture(scope='module')
def options(folder):
    return ScenesOptions(str(folder / 'work'), str(REPO / 'configs'), str(folder / 'digits'),
                         factor=FACTOR)


def test_what_was_not_expected_is_told():
    config = dict(expected={'mIoU': (50., 2.)})
    assert not check_expected(config, {'mIoU': 48.1}) and not check_expected({}, {})
    for found in (47.9, 52.1, float('nan')):
        text, = check_expected(config, {'mIoU': found})
        assert text == f'expected `mIoU` of 50.0 +/- 2.0, found {found}'
    assert 'found None' in check_expected(config, {})[0]


def test_numbers_are_those_of_the_built_models(summary, options):
    assert [(row['task'], row['model']) for row in summary['rows']] == [
        (task, model) for task in TASKS for model in ('dense', 'slim')]
    rows = {(row['task'], row['model']): row for row in summary['rows']}
    for task in TASKS:
        pipeline = ScenesPipeline(task, options)
        run = next(run for run in summary['runs'] if run['task'] == task)
        for model, stage in (('dense', 'dense'), ('slim', 'retrain')):
            row = rows[task, model]
            structure = pipeline.structure(model)
            _, built = deployed(pipeline.config(model), Start(None, structure))
            load_weights(built, run['trainings'][stage]['checkpoint'])
            assert row['params'] == count_params(built)
            assert row['backbone_macs'] == count_macs(built.backbone, SHAPE)
            assert 0 < row['ms_per_image']
        file = Structure.load(pipeline.structure('slim'))
        assert file.macs == dict(dense=rows[task, 'dense']['backbone_macs'],
                                 subnet=rows[task, 'slim']['backbone_macs'],
                                 input_shape=list(SHAPE), part='backbone')
        assert 0.67 < rows[task, 'slim']['share'] <= 0.7
    assert summary['command'].startswith('python tools/benchmarks/digit_scenes.py --work-dir')
    assert {'cpu', 'threads', 'torch', 'mmkcr'} <= set(summary['machine'])


def test_tables_say_what_the_summary_says(summary, folder):
    text = (folder / 'work' / 'table.md').read_text()
    for row in summary['rows']:
        number = row['miou'] if row['box_ap'] is None else row['box_ap']
        assert (f'| {number:.1f} |' if row['box_ap'] is None else f'| {number:.3f} |') in text
    assert summary['command'] in text and 'seed 0' in text


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob('*.pth')}


def test_a_second_call_trains_nothing(summary, call, folder):
    before = stamps(folder / 'work')
    assert len(before) == 9  # the backbone; three trainings and a subnet of each task
    again = call()
    assert again['rows'] == summary['rows'] and stamps(folder / 'work') == before


def test_a_run_that_was_stopped_goes_on(summary, options, folder, tmp_path):
    shutil.copytree(folder / 'work', tmp_path / 'work')
    record = tmp_path / 'work' / 'segmentation' / 'retrain' / 'stage.json'
    content = json.loads(record.read_text())
    result = content.pop('result')
    record.write_text(json.dumps(content))  # as if it had been stopped after its last iteration
    moved = ScenesOptions(**{**vars(options), 'work_dir': str(tmp_path / 'work')})
    checkpoint = ScenesPipeline('backbone', options).train_backbone()  # there already
    found = ScenesPipeline('segmentation', moved).run(checkpoint)
    assert found['trainings']['retrain']['curves'] == result['curves']


def test_bad_arguments(tool, tmp_path, capsys):
    for wrong in (('--factor', '0'), ('--backbone', 'no/such.pth')):
        with pytest.raises(SystemExit) as stop:
            tool.main(['--work-dir', str(tmp_path / 'work'), *wrong])
        error = capsys.readouterr().err
        assert stop.value.code == 1 and error.startswith('error: expected')
        assert error.count('\n') == 1 and not (tmp_path / 'work').exists()
