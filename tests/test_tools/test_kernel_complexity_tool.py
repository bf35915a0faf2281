"""tools/analysis_tools/kernel_complexity.py on a tiny mmpretrain classifier."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from mmkcr.apis.build import build_model
from mmkcr.evaluation.analysis import training_steps

TOOL = Path(__file__).parents[2] / 'tools/analysis_tools/kernel_complexity.py'

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


@pytest.fixture(scope='module')
def tool():
    """The command as a module."""
    spec = importlib.util.spec_from_file_location('kernel_complexity_tool', TOOL)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path):
    """A config, and checkpoints of epochs 2 and 1."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 5), ('val', 7)):
        for label in 'ab':
            folder = tmp_path / split / label
            folder.mkdir(parents=True)
            for i in range(count):
                Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(
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


def test_curve_of_two_checkpoints(tool, files, tmp_path, capsys):
    config, checkpoints, model = files
    tool.main([config, *checkpoints, '--out', str(tmp_path / 'out/kc'), '--landmarks', '20'])
    rows = json.loads((tmp_path / 'out/kc.json').read_text())
    assert [row['epoch'] for row in rows] == [1, 2]
    assert all(row['n'] == row['landmarks'] == 20 for row in rows)  # 2 x 10 training images
    assert all(row['a_kc'] == pytest.approx(row['kc'], rel=1e-6) for row in rows)
    assert rows[0]['kc'] != rows[1]['kc']
    assert (tmp_path / 'out/kc.png').stat().st_size > 1000
    printed = capsys.readouterr().out
    assert f'| epoch_1.pth | 1 | 20 | 20 | {rows[0]["kc"]:.5g} |' in printed
    features, squared = [], 0.
    for path in sorted((tmp_path / 'train').rglob('*.png')):
        image = torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1).float()
        with torch.no_grad():
            feature = model.backbone((image[None] - 127) / 60)[-1]
            score = model.head((feature, )).softmax(1)
        label = torch.tensor([[1., 0.]] if path.parent.name == 'a' else [[0., 1.]])
        features.append(feature[0])
        squared += float((score - label).square().sum()) / 10
    f = torch.stack(features).double().numpy()
    f = np.concatenate([f, f])
    values = np.sort(np.linalg.eigvalsh(f @ f.T / 20))[::-1].clip(0)
    kc = min(h / 20 + np.sqrt(values[h:].sum() / 20) for h in range(9))
    assert rows[0]['kc'] == pytest.approx(kc, rel=1e-4)
    assert rows[0]['squared_error'] == pytest.approx(squared, rel=1e-4)


def test_checkpoints_of_a_run_that_counts_iterations(tool, files, tmp_path, capsys):
    """They all say epoch 0."""
    config, checkpoints, _ = files
    for path, iteration in zip(checkpoints, (160000, 8000)):
        state = torch.load(path, weights_only=False)
        torch.save(dict(state, meta=dict(epoch=0, iter=iteration)), path)
    tool.main([config, *checkpoints, '--out', str(tmp_path / 'kc')])
    rows = json.loads((tmp_path / 'kc.json').read_text())
    assert [(row['iteration'], row.get('epoch')) for row in rows] == [(8000, None), (160000, None)]
    printed = capsys.readouterr().out
    assert '| checkpoint | iteration |' in printed and '| epoch_2.pth | 160000 |' in printed
    assert (tmp_path / 'kc.png').is_file()


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


def test_one_checkpoint_on_val(tool, files, tmp_path):
    config, checkpoints, _ = files
    tool.main([config, checkpoints[0], '--split', 'val', '--out', str(tmp_path / 'kc')])
    row, = json.loads((tmp_path / 'kc.json').read_text())
    assert row['n'] == 14 and row['split'] == 'val'
    assert not (tmp_path / 'kc.png').exists()


@pytest.mark.parametrize('extra, message', [
    (['--landmarks', '21'], 'expected from 1 to n = 20 landmarks, found `21`'),
    (['--layer', 'neck'], 'found `neck`'),
    (['--rank-ratio', '2'], 'rank ratio in (0, 1], found `2.0`'),
    (['--cfg-options', 'train_dataloader=None'], 'expected a config with `train_dataloader`'),
])
def test_bad_input_is_one_sentence_and_nothing_is_written(tool, files, tmp_path, capsys, extra,
                                                          message):
    config, checkpoints, _ = files
    with pytest.raises(SystemExit) as caught:
        tool.main([config, checkpoints[0], '--out', str(tmp_path / 'out/kc'), *extra])
    assert caught.value.code == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()
