"""DCS configs: the paper's settings, and detectors that build and take a training step."""

import json
from pathlib import Path

import config_files as runs
import pytest
from config_files import CONFIGS
from mmengine.config import Config

from long_form import every_nth
from mmkcr.models.sites import QKMaskSite
from mmkcr.models.tasks import find_backbone

DCS = [path for path in CONFIGS if path.startswith('configs/dcs/')]
DETECTION = [path for path in DCS if '/detection/' in path]
IMAGENET = [path for path in DCS if Path(path).parts[2] in ('search', 'retrain')]
# features that the classifier reads
FEATURES = {'mobilevit-small': 640, 'mobilevit-xsmall': 384, 'efficientvit-b1': 1600}


def name_of(path):
    return Path(path).stem


def test_found():
    for net in FEATURES:
        stages = {name_of(path).split('_')[0] for path in IMAGENET if f'_{net}_' in path}
        assert stages == {'dcs-search', 'dcs-retrain'}
        assert any(f'ssdlite_{net}_8xb16' in path for path in DETECTION)


@pytest.mark.parametrize('path', IMAGENET)
def test_settings_of_the_paper(path, load):
    """The paper: search as KCR's, CE + 50 IB after 90 of 300 epochs, 224 or 288 px."""
    config, name = load(path), name_of(path)
    size = 288 if 'r288' in name else 224
    assert runs.transforms(config, 'train', 'RandomResizedCrop')[0].scale == size
    assert runs.transforms(config, 'test', 'CenterCrop')[0].crop_size == size
    task = runs.task_of(config)
    assert task.backbone.get('img_size', 224) == size
    hooks = {hook.type.split('.')[-1]: hook for hook in config.get('custom_hooks', [])}
    if '/search/' in path:
        assert task.head.num_classes == 100 and 'regularizers' not in config.model
        assert config.model.price.input_shape == (3, size, size)
        assert set(hooks) == {'TemperatureDecayHook'}
        assert config.train_cfg.max_epochs == 200
        return
    structure = Path(task.backbone.structure).parts[1]
    search, = [other for other in IMAGENET if name_of(other) == structure]
    assert ('r288' in search) == ('r288' in name)
    if '/retrain/' in path:
        assert config.train_cfg.max_epochs == 300 and {'EMAHook', 'GateNoiseHook'} <= set(hooks)
        optimizer = config.optim_wrapper.optimizer
        assert (optimizer.lr, optimizer.weight_decay) == (2e-3, 0.01)
        if '_no-ib_' in name:
            assert 'InformationBottleneckHook' not in hooks
            return
        ib = config.model.regularizers.ib
        net = next(net for net in FEATURES if f'_{net}_' in name)
        assert (ib.num_features, ib.num_classes, ib.weight) == (FEATURES[net], 1000, 50.)
        assert hooks['WarmupSwitchHook'].begin == 90 and 'InformationBottleneckHook' in hooks


@pytest.mark.parametrize('path', [path for path in DETECTION if path.endswith('_coco.py')])
def test_detection_settings_of_the_paper(path, load):
    """The settings of the paper's experiments."""
    config, searched = load(path), '_search_' in path
    wrapper, schedulers = config.optim_wrapper, config.param_scheduler
    if searched:
        wrapper, schedulers = wrapper.weights, schedulers.weights
    optimizer, last = wrapper.optimizer, schedulers[-1]
    assert optimizer.type == 'AdamW' and last.type == 'CosineAnnealingLR'
    if 'ssdlite' in path:
        assert config.train_cfg.max_epochs * config.train_dataloader.dataset.times == 200
        assert optimizer.lr == 9e-4
        assert optimizer.lr * last.eta_min_ratio == pytest.approx(1.6e-6)
        assert runs.transforms(config, 'train', 'Resize')[0].scale == (320, 320)
        assert config.train_dataloader.batch_size * 8 == config.auto_scale_lr.base_batch_size
    else:
        assert config.train_cfg.max_epochs == 12 and optimizer.lr == 1e-3
        assert config.train_dataloader.batch_size * 8 == config.auto_scale_lr.base_batch_size == 16


def normalisation(preprocessor):
    rgb = preprocessor.get('to_rgb', preprocessor.get('bgr_to_rgb'))
    return list(preprocessor.mean), list(preprocessor.std), rgb


@pytest.mark.parametrize('net', ['mobilevit-small', 'mobilevit-xsmall'])
def test_detectors_see_what_their_weights_saw(net, load):
    """Dense and slim alike: the host's MobileViT is trained on BGR over 255."""
    host = normalisation(Config.fromfile(Config._get_cfg_path(
        f'mmpretrain::mobilevit/{net}_8xb128_in1k.py', '')[0]).data_preprocessor)
    assert host == ([0, 0, 0], [255, 255, 255], False)
    for path in [path for path in IMAGENET if f'_{net}_' in path]:
        assert normalisation(load(path).data_preprocessor) == host, path
    detectors = [path for path in DETECTION if f'_{net}_' in path]
    assert len(detectors) == (3 if net == 'mobilevit-small' else 2)
    for path in detectors:
        assert normalisation(runs.task_of(load(path)).data_preprocessor) == host, path


@pytest.mark.parametrize('path', every_nth(3, DETECTION))
def test_detector_builds_and_steps(path, prepared):
    config, masked, searched = prepared(path), 'mask-rcnn' in path, '_search_' in path
    if searched:
        side = 128 if 'digit-scenes' in path else 320
        assert tuple(config.model.price.input_shape) == (3, side, side)
    runner = runs.build(config)
    runs.check_run(runner)
    backbone = find_backbone(runner.model)
    runs.check_state(path, runner.model)
    assert bool(QKMaskSite.masks(backbone)) == ('_dense_' not in path)
    assert backbone.init_cfg['type'] == 'Pretrained'
    model, classes = runs.ready_to_train(runner), 10 if 'digit-scenes' in path else 80
    if masked:
        runs.few_rois(model)
    losses = runs.backward(model, runs.objects(160 if masked else 128, classes, masked))
    assert ('loss_price' in losses) == searched
    if not masked:  # mmdet's own SSDHead cannot
        data = model.data_preprocessor(runs.objects(128, classes, False))
        results = model.eval()(**data, mode='predict')
        assert len(results) == 2 and all('pred_instances' in result for result in results)
    runs.check_steps(runner)
    assert json.dumps(config.val_evaluator.metric) in ('"bbox"', '["bbox", "segm"]')
