"""The quickstart on 300 digits for an epoch or two: artefacts, consistency, reuse, resume."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lab.digits import DigitsOptions, write_digits
from lab.quickstart import MODELS, TRAININGS, Pipeline
from lab.quickstart_config import QuickstartOptions
from lab.quickstart_report import table
from long_form import few
from mmkcr.apis import count_macs
from mmkcr.apis.build import load_weights
from mmkcr.core import Structure, count_params
from mmkcr.evaluation.analysis import split_loader
from mmkcr.models.wrappers import FeatureTap

REPO = Path(__file__).parents[2]
ARCHS = few(('vit-mini', 'swin-mini'), 'vit-mini')
PLOTS = ['accuracy_macs', 'temperature', *(f'{arch}_{name}' for arch in ARCHS
                                           for name in ('channels', 'gates', 'kc'))]


def tool():
    spec = importlib.util.spec_from_file_location('quickstart', REPO / 'tools' / 'quickstart.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Twenty-four training and six held-out digits of each class."""
    root = tmp_path_factory.mktemp('quickstart')
    write_digits(root / 'all', DigitsOptions(train_scenes=1, val_scenes=1))
    for part, count in (('train', 24), ('val', 6)):
        for label in map(str, range(10)):
            (root / 'digits' / part / label).mkdir(parents=True)
            for file in sorted((root / 'all' / part / label).iterdir())[:count]:
                shutil.copy(file, root / 'digits' / part / label)
    return root


@pytest.fixture(scope='module')
def call(folder):
    """Runs the command; more arguments come last."""
    def run(*more):
        # 3 epochs of the dense model, 2 of the retrainings, the KCR term on in the second one
        tool().main(['--work-dir', str(folder / 'work'), '--data-root', str(folder / 'digits'),
                     '--epochs-factor', '0.0625', '--jobs', '2', '--archs', *ARCHS, *more])
        return json.loads((folder / 'work' / 'summary.json').read_text())
    return run


@pytest.fixture(scope='module')
def summary(call):
    return call()


@pytest.fixture(scope='module')
def options(folder):
    return QuickstartOptions(str(folder / 'work'), str(REPO / 'configs'), str(folder / 'digits'),
                             epochs_factor=0.0625)


def rows_of(summary, arch):
    return {row['model']: row for row in summary['rows'] if row['arch'] == arch}


def test_artefacts(summary, folder):
    assert [(row['arch'], row['model']) for row in summary['rows']] == [
        (arch, model) for arch in ARCHS for model in MODELS]
    text = (folder / 'work' / 'table.txt').read_text()
    assert text.startswith(table(summary['rows']))
    assert all(sentence in text for sentence in summary['verdict'])
    assert len(summary['verdict']) == len(ARCHS)
    for name in PLOTS:
        with Image.open(folder / 'work' / f'{name}.png') as image:
            assert len(np.unique(np.asarray(image.convert('L')))) > 10, name
    assert summary['machine']['torch'] == torch.__version__


@pytest.mark.parametrize('arch', ARCHS)
def test_numbers_are_those_of_the_built_models(summary, folder, options, arch):
    rows, pipeline = rows_of(summary, arch), Pipeline(arch, 0, options)
    structure = Structure.load(pipeline.folder / 'slim/structure.json')
    for name, row in rows.items():
        _, model = pipeline.deployed(name)
        assert row['params'] == count_params(model)
        assert row['macs'] == count_macs(model, (3, 32, 32))
        assert (row['digits'], row['kc_digits'], row['seeds']) == (60, 240, [0])
        assert (name == 'dense') == (row['macs'] == structure.macs['dense'])
        assert 0 < row['ms_per_image']
    assert structure.macs['subnet'] <= 0.8 * structure.macs['dense']
    assert rows['closed']['macs'] <= 0.8 * structure.macs['dense'] < 1.05 * rows['closed']['macs']
    with Image.open(pipeline.folder / 'closed/channels.png') as image:
        assert len(np.unique(np.asarray(image.convert('L')))) > 10
    run = next(run for run in summary['runs'] if run['arch'] == arch)
    assert run['kept'] == {name: len(site.kept) for name, site in structure.sites.items()}
    assert run['trainings']['dense']['epochs'] == 3
    assert len(run['trainings']['search']['curves']['temperature']) == 1


@pytest.mark.parametrize('arch', ARCHS)
def test_accuracy_and_kc_are_those_of_the_checkpoint(summary, options, arch):
    row, pipeline = rows_of(summary, arch)['kcr'], Pipeline(arch, 0, options)
    config, model = pipeline.deployed('kcr')
    checkpoint = torch.load(next((pipeline.folder / 'kcr').glob('epoch_*.pth')),
                            weights_only=False)['state_dict']
    regularizer = [key for key in checkpoint if key.startswith('regularizers.kcr.')]
    assert regularizer  # and without it the bare classifier loads the rest strictly
    model.load_state_dict({key: value for key, value in checkpoint.items()
                           if key not in regularizer}, strict=True)
    right = sum(int(sample.pred_label) == int(sample.gt_label)
                for batch in split_loader(config, 'val') for sample in model.val_step(batch))
    assert row['top1'] == pytest.approx(100 * right / 60, abs=1e-3)
    features = []
    with torch.no_grad(), FeatureTap(model) as tap:
        for batch in split_loader(config, 'train'):
            model.val_step(batch)
            features.append(tap.features.double().numpy())
    features = np.concatenate(features)
    values = np.linalg.svd(features, compute_uv=False)**2 / len(features)
    kc = min(h / 240 + np.sqrt(max(values[h:].sum(), 0) / 240) for h in range(len(values) + 1))
    assert row['kc'] == pytest.approx(kc, rel=1e-4)


def stamps(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob('*.pth')}


def test_a_second_call_trains_nothing(summary, call, folder):
    before = stamps(folder / 'work')
    # beside trainings: the slim network, the compressed one and the profiles of its sites
    assert len(before) == len(ARCHS) * (len(TRAININGS) + 3)
    again = call('--jobs', '1')
    assert again['rows'] == summary['rows'] and again['runs'] == summary['runs']
    assert stamps(folder / 'work') == before


def test_a_run_that_was_stopped_goes_on(summary, options, folder, tmp_path):
    copy = tmp_path / 'work'
    shutil.copytree(folder / 'work', copy)
    record = copy / 'vit-mini' / 'seed0' / 'kcr' / 'stage.json'
    content = json.loads(record.read_text())
    result = content.pop('result')
    record.write_text(json.dumps(content))  # as if it had been stopped after its last epoch
    said = []
    options = QuickstartOptions(**{**vars(options), 'work_dir': str(copy)})
    found = Pipeline('vit-mini', 0, options, lambda *news: said.append(news)).run()
    assert not [news for news in said if news[4] is not None], 'an epoch was trained again'
    assert found['trainings']['kcr']['curves'] == result['curves']
    assert found['models']['kcr']['top1'] == rows_of(summary, 'vit-mini')['kcr']['top1']


def test_bad_arguments(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        tool().main(['--work-dir', str(tmp_path / 'work'), '--epochs-factor', '0'])
    error = capsys.readouterr().err
    assert stop.value.code == 1 and error.startswith('error: expected') and error.count('\n') == 1
    assert not (tmp_path / 'work').exists()


def test_weights_of_a_slimmed_model_load_strictly(summary, options):
    pipeline = Pipeline(ARCHS[-1], 0, options)
    _, model = pipeline.deployed('slim')
    saved = load_weights(model, pipeline.folder / 'slim' / 'subnet.pth')['state_dict']
    assert set(saved) == set(model.state_dict())
    assert all(torch.equal(value, saved[key]) for key, value in model.state_dict().items())
