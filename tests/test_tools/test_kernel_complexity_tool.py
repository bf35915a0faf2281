"""tools/analysis_tools/kernel_complexity.py on a tiny mmpretrain classifier."""

import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from mmengine.config import Config
from PIL import Image

from lab.kernel_analysis import kernel_statistics, training_steps
from mmkcr.engine.build import build_model, load_config
from mmkcr.evaluation.features import feature_layer_of
from mmkcr.models.tasks import find_task
from tools.analysis_tools.kernel_complexity import plot_bounds

ROOT = Path(__file__).parents[2]
TOOL = 'analysis_tools/kernel_complexity'

CONFIG = """
default_scope = 'mmpretrain'
data_preprocessor = dict(mean=[127.] * 3, std=[60.] * 3, to_rgb=True, num_classes=2)
model = dict(
    type='ImageClassifier',
    backbone=dict(type='VisionTransformer', img_size=16, patch_size=8, arch=dict(
        embed_dims=8, num_layers=1, num_heads=2, feedforward_channels=16)),
    head=dict(type='VisionTransformerClsHead', num_classes=2, in_channels=8))
crash = [dict(type='LoadImageFromFile'), dict(type='RandomFlip', prob=1.0),
         dict(type='PackInputs', meta_keys='never in a test pipeline')]
train_dataloader = dict(batch_size=3, num_workers=0, sampler=dict(type='DefaultSampler'),
    dataset=dict(type='RepeatDataset', times=2, dataset=dict(
        type='CustomDataset', data_root='{root}/train', pipeline=crash)))
val_dataloader = dict(batch_size=4, num_workers=0, sampler=dict(type='DefaultSampler'),
    dataset=dict(type='CustomDataset', data_root='{root}/val', pipeline=[
        dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
"""


@pytest.fixture
def files(tmp_path):
    """A config, and checkpoints of epochs 2 and 1."""
    rng = np.random.default_rng(0)
    for split, count, dark in (('train', 5, 0), ('val', 7, 150)):  # two distributions
        for label in 'ab':
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(dark, 255, (16, 16, 3), dtype=np.uint8)).save(
                    folder / f'{i}.png')
    config = tmp_path / 'tiny.py'
    config.write_text(CONFIG.replace('{root}', str(tmp_path)))
    model = build_model(Config.fromfile(config))
    checkpoints = []
    for epoch in (2, 1):
        torch.nn.init.normal_(model.backbone.ln1.weight, std=epoch)
        path = tmp_path / f'epoch_{epoch}.pth'
        torch.save(dict(state_dict=model.state_dict(), meta=dict(epoch=epoch)), path)
        checkpoints.append(str(path))
    return str(config), checkpoints, model


def computed(model, folder):
    """Features (n, d) and mean squared error of the images of a folder, one at a time."""
    features, squared = [], []
    for path in sorted(folder.rglob('*.png')):
        image = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1).float()
        with torch.no_grad():
            feature = model.backbone((image[None] - 127) / 60)[-1]
            score = model.head((feature, )).softmax(1)
        label = torch.tensor([[1., 0.]] if path.parent.name == 'a' else [[0., 1.]])
        features.append(feature[0])
        squared.append(float((score - label).square().sum()))
    return torch.stack(features).double().numpy(), np.mean(squared)


def complexity(f):
    """KC of features (n, d), from the n x n kernel as the paper writes it."""
    n = len(f)
    values = np.sort(np.linalg.eigvalsh(f @ f.T / n))[::-1].clip(0)
    return min(h / n + np.sqrt(values[h:].sum() / n) for h in range(min(f.shape) + 1))


def test_table_of_figure_1(run_tool, files, tmp_path):
    """Losses of both sets over epochs, and the bounds that follow from the training set."""
    config, checkpoints, model = files
    printed = run_tool(TOOL, config, *checkpoints, '--out', 'out/kc', '--landmarks', 14)
    rows = json.loads((tmp_path / 'out/kc.json').read_text())
    assert [(row['epoch'], row['split'], row['n']) for row in rows] == [
        (1, 'train', 20), (1, 'val', 14), (2, 'train', 20), (2, 'val', 14)]  # 2 x 10 to train
    train, val = rows[::2], rows[1::2]
    assert train[0]['kc'] != train[1]['kc']
    assert (tmp_path / 'out/kc.png').stat().st_size > 1000
    assert f'| epoch_1.pth | 1 | train | 20 | {train[0]["landmarks"]} | ' \
        f'{train[0]["kc"]:.5g} |' in printed

    # the checkpoint of epoch 1 is the model as the fixture leaves it
    features, error = computed(model, tmp_path / 'train')
    kc = complexity(np.concatenate([features, features]))
    held_out, error_val = computed(model, tmp_path / 'val')
    assert train[0]['kc'] == pytest.approx(kc, rel=1e-4)
    assert abs(error_val - error) > 1e-3 and abs(complexity(held_out) / kc - 1) > 1e-2
    assert train[0]['squared_error'] == pytest.approx(error, rel=1e-4)
    assert val[0]['squared_error'] == pytest.approx(error_val, rel=1e-4)
    for name, key in (('kcr', 'kc'), ('a_kcr', 'a_kc')):
        reach = train[0][key] + 3 / 20
        assert [train[0][f'{name}_{end}'] for end in ('lower', 'upper')] == pytest.approx(
            [error - reach, error + reach], rel=1e-4)
    # with few landmarks A-KC is another number, and its band the wider one
    assert 0 < train[0]['landmarks'] < 20 and train[0]['a_kc'] > train[0]['kc']


def test_default_landmarks_are_at_most_those_of_the_paper(monkeypatch):
    """m = 50000 of ImageNet's 1.28 M images; a tenth of less than half a million."""
    metric = mock.Mock()
    metric.return_value.evaluate.return_value = {}
    monkeypatch.setattr('lab.kernel_analysis.KernelComplexityMetric', metric)
    for n, expected in ((1281167, 50000), (500000, 50000), (1437, 143.7)):
        loader = mock.MagicMock(dataset=range(n))
        kernel_statistics(torch.nn.Sequential(torch.nn.Identity()), loader, layer='0')
        assert metric.call_args.kwargs['landmark_ratio'] * n == pytest.approx(expected)


def test_checkpoints_of_a_run_that_counts_iterations(run_tool, files, tmp_path):
    """They all say epoch 0."""
    config, checkpoints, _ = files
    for path, iteration in zip(checkpoints, (160000, 8000)):
        state = torch.load(path, weights_only=False)
        torch.save(dict(state, meta=dict(epoch=0, iter=iteration)), path)
    printed = run_tool(TOOL, config, *checkpoints, '--out', 'kc')
    rows = json.loads((tmp_path / 'kc.json').read_text())
    assert [row['iteration'] for row in rows] == [8000, 8000, 160000, 160000]
    assert '| checkpoint | iteration | split |' in printed
    assert '| epoch_2.pth | 160000 | val |' in printed and (tmp_path / 'kc.png').is_file()


@pytest.mark.parametrize('metas, expected', [
    ([dict(epoch=2, iter=20), dict(epoch=1, iter=10)], ('epoch', [2, 1])),
    ([dict(epoch=2), dict(epoch=1)], ('epoch', [2, 1])),
    # the best of a validation, and that of its epoch
    ([dict(epoch=2, iter=20)] * 2, ('epoch', [2, 2])),
    ([dict(epoch=0, iter=20), dict(epoch=0, iter=10)], ('iteration', [20, 10])),
    ([dict(epoch=0, iter=20)], ('iteration', [20])),
    # saved every 50 iterations in epochs of 100
    ([dict(epoch=n // 100 + 1, iter=n) for n in (50, 100, 150)], ('iteration', [50, 100, 150])),
    ([{}, dict(epoch=1, iter=10)], ('epoch', [1, 2])),
])
def test_how_far_checkpoints_were_trained(metas, expected):
    assert training_steps(metas) == expected


@pytest.mark.parametrize('extra, message', [
    (['--landmarks', '21'], 'expected from 1 to n = 20 landmarks, found `21`'),
    (['--layer', 'neck'], 'found `neck`'),
    (['--cfg-options', 'train_dataloader=None'], 'expected a config with `train_dataloader`'),
])
def test_bad_input_is_one_sentence_and_nothing_is_written(refused, files, extra, message):
    config, checkpoints, _ = files
    assert message in refused(TOOL, config, checkpoints[0], '--out', 'out/kc', *extra)


@pytest.mark.parametrize('splits', ['train val', 'train', 'val'])
def test_curves_of_figure_1(splits, tmp_path, monkeypatch):
    """Of the splits that were asked for, and the bands of the training set."""
    errors, splits = dict(train=[0, 1], val=[2, 3]), splits.split()
    rows = [dict(epoch=epoch, split=split, squared_error=errors[split][epoch - 1], kc=2, a_kc=3,
                 kcr_lower=-1, kcr_upper=epoch + 5, a_kcr_lower=-2, a_kcr_upper=epoch + 7)
            for epoch in (1, 2) for split in splits]
    drawn, save = [], Figure.savefig
    monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **kwargs: (
        drawn.extend(figure.axes), save(figure, *args, **kwargs)))
    plot_bounds(rows, tmp_path / 'kc.png')
    left, right = drawn
    assert [[*map(list, line.get_data())] for line in left.lines] == [
        [[1, 2], errors[split]] for split in splits]
    bands = [band.get_paths()[0].vertices[:, 1] for band in left.collections]
    # the theorem has none of the validation set
    assert [(band.min(), band.max()) for band in bands] == [(-1, 7), (-2, 9)] * ('train' in splits)
    assert [[*line.get_ydata()] for line in right.lines] == [[2, 2], [3, 3]]


@pytest.mark.parametrize('stage, part', [('retrain', 'in1k'), ('search', 'in1k-100')])
def test_layer_is_that_of_the_config(stage, part):
    """EfficientViT's classifier reads 1600 features, not the 256 of its backbone."""
    config = ROOT / f'configs/kcr/{stage}/kcr-{stage}_efficientvit-b1_8xb64_{part}.py'
    for options in ({}, {'compression.wrapper': None}):  # as it is deployed
        model = build_model(load_config(config, {'compression.structure': None, **options}))
        assert feature_layer_of(model) == 'head.fc:input'
        assert find_task(model).head.fc.in_features == 1600


def test_one_checkpoint_on_val(run_tool, files, tmp_path):
    config, checkpoints, _ = files
    complexities = set()
    for layer in ([], ['--layer', 'backbone.patch_embed.projection']):
        run_tool(TOOL, config, checkpoints[0], '--split', 'val', '--out', 'kc', *layer)
        row, = json.loads((tmp_path / 'kc.json').read_text())
        assert row['n'] == 14 and row['split'] == 'val'
        complexities.add(row['kc'])
    assert len(complexities) == 2 and not (tmp_path / 'kc.png').exists()
