"""The kernel complexity that the ImageNet configs measure in every validation, on the digits."""

import json
from pathlib import Path

import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from lab.kernel_analysis import kernel_statistics, split_loader
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.engine.compressed_config import CompressionRunner
from mmkcr.methods.kcr.metric import KernelComplexityMetric

CONFIGS = Path(__file__).parents[2] / 'configs'
VALIDATED = 37

# the shipped config with other images and a smaller network
SMALL = """
_base_ = {base!r}
data_preprocessor = dict(num_classes=10)
pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
train_dataloader = dict(
    batch_size=8, num_workers=0, persistent_workers=False, dataset=dict(
        _delete_=True, type='CustomDataset', data_root={data!r}, data_prefix='train',
        indices=list(range(0, 1400, 35)), pipeline=pipeline))
val_dataloader = dict(
    batch_size=8, num_workers=0, persistent_workers=False, dataset=dict(
        _delete_=True, type='CustomDataset', data_root={data!r}, data_prefix='val',
        indices=list(range(0, 333, 9)), pipeline=pipeline))
train_cfg = dict(max_epochs=1, val_interval=1)
model = dict(backbone={backbone}, head={head})
compression = dict({structure}regularizers=dict(kcr=dict(num_features={width})))
"""
VIT = dict(img_size=32, patch_size=8, drop_rate=0., arch=dict(
    _delete_=True, embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64))
OF_VIT = dict(backbone=VIT, head=dict(num_classes=10, in_channels=32), width=32)
RUNS = {
    'retrain/kcr-retrain_vit-base_8xb64_in1k': OF_VIT,
    'search/kcr-search_vit-base_8xb64_in1k-100': OF_VIT,
    'retrain/kcr-retrain_efficientvit-b1_8xb64_in1k': dict(
        backbone=dict(img_size=32, arch=dict(
            _delete_=True, widths=[8, 16, 32], depths=[1, 1, 1], head_dim=8)),
        head=dict(num_classes=10, in_channels=32, widths=(48, 64)), width=64)}


def write(folder, name, digits_root):
    """A config file."""
    file = folder / 'small.py'
    file.write_text(SMALL.format(
        base=str(CONFIGS / f'kcr/{name}.py'), data=digits_root,
        structure='structure=None, ' if name.startswith('retrain') else '', **RUNS[name]))
    return file


def validated(work_dir):
    """What the validation of a run logged."""
    file, = Path(work_dir).glob('*/vis_data/scalars.json')
    row = next(row for row in map(json.loads, file.read_text().splitlines()) if 'kernel/kc' in row)
    return {name.split('/')[1]: value for name, value in row.items() if name.startswith('kernel/')}


@pytest.mark.parametrize('name', RUNS)
def test_the_validation_gives_what_the_command_computes(name, digits_root, tmp_path,
                                                        monkeypatch):
    """Of the averaged weights, and of the features that the classifier reads."""
    widths, process = set(), KernelComplexityMetric.process

    def seen(self, data_batch, data_samples):
        widths.update(len(sample['features']) for sample in data_samples)
        process(self, data_batch, data_samples)

    file = write(tmp_path, name, digits_root)
    # the paper's m is above the number of digits
    options = {'custom_hooks.2.landmarks': None} if name.startswith('search') else {}
    config = Config.fromfile(file)
    config.merge_from_dict(options)
    config.work_dir, config.experiment_name = str(tmp_path / 'run'), 'validated'
    monkeypatch.setattr(KernelComplexityMetric, 'process', seen)
    CompressionRunner.from_cfg(config).train()
    assert widths == {RUNS[name]['width']}
    found = validated(config.work_dir)
    assert found['n'] == VALIDATED and 0 < found['kc'] <= found['a_kc']
    assert found['kcr_upper'] == pytest.approx(found['squared_error'] + found['kc'] + 3 / 37)

    loaded = load_config(file, options)
    model = build_model(loaded)
    load_weights(model, str(tmp_path / 'run/epoch_1.pth'))
    expected = kernel_statistics(model, split_loader(loaded, 'val'))
    assert found == pytest.approx(expected, rel=1e-4)


def test_dense_by_an_option(digits_root, tmp_path):
    """`compression=None` trains the dense network by the same recipe, and measures it too."""
    config = Config.fromfile(
        write(tmp_path, 'retrain/kcr-retrain_vit-base_8xb64_in1k', digits_root))
    config.merge_from_dict(dict(compression=None))
    config.work_dir, config.experiment_name = str(tmp_path / 'run'), 'dense'
    runner = CompressionRunner.from_cfg(config)
    assert type(runner) is Runner and type(runner.model).__name__ == 'ImageClassifier'
    assert runner.model.backbone.search_space.structure is None
    runner.train()
    assert validated(config.work_dir)['n'] == VALIDATED
