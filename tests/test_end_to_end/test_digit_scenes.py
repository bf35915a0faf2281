"""The table of the digit scenes at a quarter of the schedules: bars and consistency.

Reuse and resume of its stages: tests/test_lab/test_study.py.
"""

import json
from pathlib import Path

import pytest

from lab.commands import load_tool
from lab.digits import write_digits
from lab.pipeline import Start, deployed
from lab.scenes_job import EXPECTED, TASKS, ScenesOptions, ScenesPipeline
from mmkcr.apis import count_macs
from mmkcr.core import Structure, count_params
from mmkcr.engine.build import check_expected, load_config, load_weights

REPO = Path(__file__).parents[2]
SHAPE = (3, 128, 128)
#: Made by `python tools/train.py configs/kcr/digits/kcr-dense_swin-mini_anywhere_1xb64_digits.py`,
#: which takes minutes: the weights of its last checkpoint in 16 bits.
BACKBONE = REPO / 'tests/data/swin-mini_anywhere_digits.pth'


@pytest.fixture(scope='module')
def options(tmp_path_factory):
    """What is run."""
    folder = tmp_path_factory.mktemp('digit_scenes')
    write_digits(folder / 'digits')
    return ScenesOptions(str(folder / 'work'), str(REPO / 'configs'), str(folder / 'digits'),
                         backbone=str(BACKBONE), factor=0.25)


@pytest.fixture(scope='module')
def summary(options):
    load_tool('benchmarks/digit_scenes').main([
        '--work-dir', options.work_dir, '--data-root', options.data_root, '--backbone',
        options.backbone, '--factor', str(options.factor), '--tasks', *TASKS])
    return json.loads((Path(options.work_dir) / 'summary.json').read_text())


def test_what_was_not_expected_is_told():
    config = dict(expected={'mIoU': (50., 2.)})
    assert not check_expected(config, {'mIoU': 48.1}) and not check_expected({}, {})
    for found in (47.9, 52.1, float('nan')):
        text, = check_expected(config, {'mIoU': found})
        assert text == f'expected `mIoU` of 50.0 +/- 2.0, found {found}'
    assert 'found None' in check_expected(config, {})[0]


@pytest.mark.long  # minutes for each task
@pytest.mark.parametrize('task', TASKS)
def test_numbers_are_those_of_the_built_models(summary, options, task):
    assert [(row['task'], row['model']) for row in summary['rows']] == [
        (name, model) for name in TASKS for model in ('dense', 'slim')]
    rows = {row['model']: row for row in summary['rows'] if row['task'] == task}
    run, = (run for run in summary['runs'] if run['task'] == task)
    pipeline = ScenesPipeline(task, options)
    for model, stage in (('dense', 'dense'), ('slim', 'retrain')):
        row = rows[model]
        _, built = deployed(pipeline.config(model), Start(None, pipeline.structure(model)))
        load_weights(built, run['trainings'][stage]['checkpoint'])
        assert row['params'] == count_params(built)
        assert row['backbone_macs'] == count_macs(built.backbone, SHAPE)
        assert 0 < row['ms_per_image']
    file = Structure.load(pipeline.structure('slim'))
    assert file.macs == dict(dense=rows['dense']['backbone_macs'],
                             subnet=rows['slim']['backbone_macs'],
                             input_shape=list(SHAPE), part='backbone')
    assert 0.67 < rows['slim']['share'] <= 0.7
    assert summary['command'].startswith('python tools/benchmarks/digit_scenes.py --work-dir')
    assert {'cpu', 'threads', 'torch', 'mmkcr'} <= set(summary['machine'])


@pytest.mark.long
def test_bars(summary, options):
    """What the configs expect is met, and far above chance: 0 for digits found, 5 % for labels."""
    far = {'coco/bbox_mAP': 0.1, 'coco/segm_mAP': 0.1, 'mIoU': 10.}
    for row in summary['rows']:
        config = load_config(REPO / 'configs' / TASKS[row['task']].format(row['model']))
        expected = config[EXPECTED[options.factor]]
        assert set(expected) == set(config.expected)
        assert all(value - tolerance > far[name]
                   for name, (value, tolerance) in expected.items())
        assert not check_expected(config, row['metrics'], EXPECTED[options.factor])
