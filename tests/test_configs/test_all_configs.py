"""Every config is built: model, data, hooks, optimizers, schedules, loops and evaluators."""

import ast
import re
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import config_files as runs
import pytest
import torch
from config_files import CONFIGS, ROOT
from mmengine.config import Config
from mmengine.runner import save_checkpoint

from lab.model_zoo import uninitialized
from long_form import every_nth
from mmkcr.engine.build import build_model
from mmkcr.engine.compressed_config import expand_compression
from mmkcr.methods.dcs.information_bottleneck import InformationBottleneckLoss
from mmkcr.methods.kcr.kernel_complexity import KernelComplexityLoss
from mmkcr.models.tasks import find_task

FOUND = {'combined': 1, 'kcr/ssl': 15, 'kcr/vqa': 6, 'kcr/search': 6, 'kcr/retrain': 7,
         'kcr/transfer': 3, 'kcr/digits': 11, 'kcr/detection': 9, 'kcr/segmentation': 8,
         'dcs/digits': 13, 'dcs/search': 4, 'dcs/retrain': 7, 'dcs/detection': 14,
         'dwconv/digits': 8, 'dwconv/imagenet': 5, 'dwconv/segmentation': 20,
         'ofb/search': 4, 'ofb/retrain': 4, 'ofb/transfer': 2, 'ofb/segmentation': 8,
         'ofb/detection': 3, 'ofb/digits': 5}
# the others are built by the tests that are named after their folder or method
CLASSIFIERS = [path for path in CONFIGS
               if Path(path).parts[2] not in ('detection', 'segmentation', 'ssl', 'vqa')
               and not {'dwconv', 'ofb'} & set(Path(path).parts)]
SMALL = [path for path in CLASSIFIERS if '/digits/' in path]


def test_all_are_found():
    folders = Counter(str(Path(path).parent.relative_to('configs')) for path in CONFIGS)
    assert folders == FOUND
    assert len(SMALL) == 24


def test_no_model_base_only_wraps_another_one():
    """Wrapper, gates, price and regularisers come from the method bases."""
    bases = sorted((ROOT / 'configs/_base_/models').glob('*.py'))
    assert bases and not [path.name for path in bases if 'architecture=' in path.read_text()]
    files = (ROOT / 'configs').rglob('*.py')
    assert not [path.name for path in files if 'architecture={{' in path.read_text()]


def test_every_base_is_used():
    texts = {path: path.read_text() for path in (ROOT / 'configs').rglob('*.py')}
    bases = [path.name for path in texts
             if '_base_' in path.parts and path.parent.name != 'methods']
    unused = [name for name in bases if not any(f"/{name}'" in text for text in texts.values())]
    assert not unused


def test_basenames_are_unique_and_follow_the_pattern():
    names = [Path(path).stem for path in CONFIGS]
    assert len(set(names)) == len(names)
    pattern = r'[a-z-]+_[a-z0-9-]+(_[a-z0-9-]+)?_\d+xb\d+_[a-z0-9-]+'
    assert not [name for name in names if not re.fullmatch(pattern, name)]


def test_the_stage_stands_in_one_place():
    """Behind the method; of dense tasks, whose model is there, behind the network."""
    for path in CONFIGS:
        first, _, *rest = Path(path).stem.split('_')
        stages = [part for part in rest if part in runs.STAGES]
        if {'detection', 'segmentation'} & set(Path(path).parts):
            assert first.rpartition('-')[2] not in runs.STAGES and stages in ([], rest[:1]), path
        else:
            assert first.rpartition('-')[2] in runs.STAGES and not stages, path


@pytest.mark.parametrize('path', CONFIGS)
def test_header_gives_command_and_result(path):
    text = (ROOT / path).read_text()
    header = ''.join(re.match(r'(#.*\n)+', text)[0].splitlines(True))
    commands = re.findall(r'configs/\S+\.py', header)
    assert path in commands and all((ROOT / other).is_file() for other in commands)
    if 'digit' not in Path(path).stem:
        assert 'Not run.' in header
    assert ast.get_docstring(ast.parse(text)) is None and len(text.splitlines()) < 40


@pytest.mark.parametrize('path', every_nth(3, CLASSIFIERS))
def test_builds(path, prepared):
    """Those on the digits also train: every parameter gets a gradient."""
    config = prepared(path)
    runner = runs.build(config, nullcontext if path in SMALL else uninitialized)
    task = find_task(runner.model)
    classes = task.head.num_classes
    for part in ('train', 'val', 'test'):
        assert config.data_preprocessor.num_classes == classes, part
    assert set(runner.val_evaluator.metrics[0].topk) <= set(range(1, classes + 1))
    runs.check_state(path, runner.model)
    wrapped = dict(search='SearchModel', retrain='RegularizedModel')
    if '_arch1_' in path:  # dense, with masks, whose openness has a price
        wrapped['dense'] = 'RegularizedModel'
    assert type(runner.model).__name__ == wrapped.get(runs.stage_of(path), 'ImageClassifier')
    if path in SMALL:
        runner.model.init_weights()
        losses = runs.backward(runs.ready_to_train(runner), runs.labelled())
        terms = {f'loss_{name}' for name in getattr(runner.model, 'regularizers', ())}
        expected = {'loss', *terms, *(['loss_price'] if 'search' in path else [])}
        assert expected == {name for name in losses if 'loss' in name}
    runs.check_run(runner)
    names = [type(hook).__name__ for hook in runner.hooks]
    assert names.count('ExactResumeHook') == 1
    kernel, bottleneck = (any(isinstance(m, loss) for m in runner.model.modules())
                          for loss in (KernelComplexityLoss, InformationBottleneckLoss))
    assert ('NystromRefreshHook' in names) == kernel
    assert ('InformationBottleneckHook' in names) == bottleneck
    assert ('WarmupSwitchHook' in names) == (kernel or bottleneck)


def test_transfer_starts_from_the_retrained_backbone(load, tmp_path):
    """The backbone of a retraining checkpoint is loaded whole, the head is new."""
    arch = dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64)
    sites = {f'layers.{i}.ffn.mlp_channels': dict(total=32, kept=20) for i in range(2)}
    structure = dict(format_version=1, sites=sites, backbone=dict(type='KCRVisionTransformer'))
    retrain = load('configs/kcr/retrain/kcr-retrain_vit-base_8xb64_in1k.py')
    transfer = load('configs/kcr/transfer/kcr-transfer_vit-base_8xb64_pets.py')
    for task in (retrain.model.architecture, transfer.model):
        task.backbone.update(arch=arch, structure=structure)
        task.head.in_channels = 32
    retrain.model.regularizers.kcr.num_features = 32
    trained = build_model(retrain)
    save_checkpoint(dict(state_dict=trained.state_dict()), str(tmp_path / 'epoch_300.pth'))
    transfer.model.backbone.init_cfg.checkpoint = str(tmp_path / 'epoch_300.pth')
    model = build_model(transfer)
    model.init_weights()
    expected = trained.architecture.backbone.state_dict()
    assert len(expected) > 20
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, expected[name]), name
    assert model.head.num_classes == 37


@pytest.mark.parametrize('path', ['kcr/retrain/kcr-retrain_swin-tiny_8xb64_in1k.py',
                                  'kcr/digits/kcr-search_vit-mini_1xb64_digits.py',
                                  '_base_/datasets/imagenet100_bs64.py'])
def test_library_references(path, load, tmp_path):
    own = tmp_path / 'own.py'
    own.write_text(f"_base_ = 'mmkcr::{path}'\ntrain_dataloader = dict(batch_size=3)\n")
    config, original = expand_compression(Config.fromfile(own)), load(f'configs/{path}')
    assert config.train_dataloader.batch_size == 3
    if 'model' in original:
        assert config.model.type == original.model.type
        assert config.custom_imports.imports == ['mmkcr']
