"""A study of 300 digits for an epoch or two: artefacts, and numbers of the built models."""

import json
import multiprocessing
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from lab import jobs
from lab.commands import load_tool
from lab.kernel_analysis import classification_scores, kernel_statistics, split_loader
from lab.pipeline import deployed
from lab.study import Study, StudyOptions
from lab.study_pipeline import StudyPipeline
from long_form import few
from mmkcr.apis import count_macs
from mmkcr.core import Structure, count_params

FORK = multiprocessing.get_context('fork')
REPO = Path(__file__).parents[2]
STUDY = REPO / 'configs/kcr/digits/kcr-study_quickstart_digits.yml'
NETS = few(('vit-mini', 'swin-mini'), 'vit-mini')


@pytest.fixture(scope='module')
def folder(digits_root, tmp_path_factory):
    """Twenty-four training and six held-out digits of each class."""
    root = tmp_path_factory.mktemp('study')
    for part, count in (('train', 24), ('val', 6)):
        for label in map(str, range(10)):
            (root / 'digits' / part / label).mkdir(parents=True)
            for file in sorted((digits_root / part / label).iterdir())[:count]:
                shutil.copy(file, root / 'digits' / part / label)
    return root


@pytest.fixture(scope='module')
def summary(folder):
    # 3 epochs of the dense model, 2 of the retrainings, the KCR term on in the second one; in
    # copies of this process: new ones are in the long form of test_lab/test_study.py
    with mock.patch.object(jobs.multiprocessing, 'get_context', lambda _: FORK):
        load_tool('study').main([
            str(STUDY), '--work-dir', str(folder / 'work'), '--data-root', str(folder / 'digits'),
            '--epochs-factor', '0.0625', '--jobs', '2', '--nets', *NETS])
    return json.loads((folder / 'work' / 'summary.json').read_text())


@pytest.fixture(scope='module')
def pipelines(summary, folder):
    options = StudyOptions(str(folder / 'work'), str(folder / 'digits'), epochs_factor=0.0625)
    study = Study(STUDY)
    found = {net: StudyPipeline(study, net, 0, options) for net in NETS}
    for run in summary['runs']:
        found[run['net']].results = run['stages']
    return found


def built(pipeline, name):
    """Config and model of a row, as one deploys them."""
    row = pipeline.study.rows[name]
    return deployed(pipeline.config(row['config']), pipeline.start(row['weights']))


@pytest.mark.parametrize('net', NETS)
def test_numbers_are_those_of_the_built_models(summary, pipelines, folder, net):
    rows = {row['row']: row['mean'] for row in summary['rows'] if row['net'] == net}
    assert list(rows) == ['dense', 'closed', 'slim', 'plain', 'kcr']
    pipeline = pipelines[net]
    structure = Structure.load(pipeline.folder / 'slim/structure.json')
    for name, row in rows.items():
        _, model = built(pipeline, name)
        assert (row['params'], row['macs']) == (count_params(model), count_macs(model, (3, 32, 32)))
        assert row['kernel/n'] == 240
        assert (name == 'dense') == (row['macs'] == structure.macs['dense'])
    for name in ('slim', 'closed'):
        assert 0.76 < rows[name]['macs'] / structure.macs['dense'] <= 0.8
    for picture in (pipeline.folder / 'closed/channels.png',
                    folder / f'work/accuracy_over_macs_{net}.png'):
        with Image.open(picture) as image:
            assert len(np.unique(np.asarray(image.convert('L')))) > 10
    assert net in (folder / 'work/table.txt').read_text()


@pytest.mark.parametrize('net', NETS)
def test_accuracy_and_kc_are_those_of_the_checkpoint(summary, pipelines, net):
    """What they are: tests/test_tools/test_kernel_complexity_tool.py."""
    row = next(row['mean'] for row in summary['rows'] if (row['net'], row['row']) == (net, 'kcr'))
    config, model = built(pipelines[net], 'kcr')
    start = pipelines[net].start('kcr')
    checkpoint = torch.load(start.weights, weights_only=False)['state_dict']
    regularizer = [key for key in checkpoint if key.startswith('regularizers.kcr.')]
    assert regularizer  # and without it the bare classifier loads the rest strictly
    model.load_state_dict({key: value for key, value in checkpoint.items()
                           if key not in regularizer}, strict=True)
    scores = classification_scores(model, split_loader(config, 'val'))
    assert row['accuracy/top1'] == pytest.approx(scores['top1'], abs=1e-3)
    kernel = kernel_statistics(model, split_loader(config, 'train'))
    assert row['kernel/kc'] == pytest.approx(kernel['kc'], rel=1e-4)
