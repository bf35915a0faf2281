"""The networks that come with the package: small, whole, and as good as their table says."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from mmengine.config import Config

from mmkcr.apis import inferencer, list_models, sample_image
from mmkcr.apis.inference import model_index
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights

ROOT = Path(__file__).parents[2]
ZOO = ROOT / 'tools/model_zoo/trained'
ROWS = json.loads((ZOO / 'models.json').read_text())['models']
CLASSIFIER, SEGMENTOR = (
    f'compress-30_{name}' for name in ('vit-mini_digits', 'upernet_swin-mini_digit-scenes'))


def test_files():
    """As their hashes say, and small enough for a repository."""
    lines = [line.split('  ') for line in (ZOO / 'SHA256SUMS').read_text().splitlines()]
    for digest, name in lines:
        assert hashlib.sha256((ZOO / name).read_bytes()).hexdigest() == digest, name
    assert {path.name for path in ZOO.iterdir()} == {name for _, name in lines} | {'SHA256SUMS'}
    assert sum(path.stat().st_size for path in ZOO.glob('*.pth')) < 2**21


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row['name'])
def test_row(row):
    """The config is found by its name, takes the weights whole and is what the structure says."""
    entry = model_index()[row['name']]
    assert row['name'] in list_models() and entry['Weights'].startswith(str(ZOO))
    config = load_config(entry['Config'])
    assert isinstance(config, Config) and config.load_from == entry['Weights']
    model = build_model(config)
    content = load_weights(model, entry['Weights'])
    assert content['meta']['params'] == row['params'] == entry['Metadata']['Parameters']
    if row['name'].startswith('dense'):
        assert row['macs'] == row['dense_macs']
    else:
        structure = Structure.load(ZOO / f'{row["name"]}.json')
        assert structure.macs['subnet'] == row['macs'] <= 0.3 * row['dense_macs']
    text = (ZOO / 'README.md').read_text()
    assert f'[{row["name"]}]({row["files"][0]})' in text and row['command'] in text


def test_the_sample_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert inferencer(CLASSIFIER)(sample_image())[0]['pred_class'] == '3'


def test_classifier_knows_the_digits(digits_root):
    """Every eighth of those that it was not trained on."""
    classify = inferencer(CLASSIFIER)
    images = sorted((digits_root / 'val').rglob('*.png'))[::8]
    found = classify([str(image) for image in images], batch_size=len(images))
    right = [row['pred_label'] == int(image.parent.name) for row, image in zip(found, images)]
    assert len(right) >= 40 and np.mean(right) > 0.9


def test_segmentor_knows_the_digits(digits_root):
    """Of the pixels of digits, most: by chance it would be one in ten."""
    import mmcv
    folder = digits_root / 'scenes'
    images = sorted((folder / 'images/validation').glob('*'))
    found = inferencer(SEGMENTOR)([str(image) for image in images])['predictions']
    truth = [mmcv.imread(folder / 'annotations/validation' / f'{image.stem}.png', 'unchanged')
             for image in images]
    right = [(one + 1 == mask)[mask > 0] for one, mask in zip(found, truth)]  # 0: background
    assert len(images) == 10 and np.concatenate(right).mean() > 0.5
