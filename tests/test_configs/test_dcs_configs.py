"""DCS configs: the paper's settings, and detectors that build and take a training step."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from config_files import CONFIGS
from mmdet.structures import DetDataSample
from mmdet.structures.mask import BitmapMasks
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.runner import Runner
from mmengine.structures import InstanceData

from lab.model_zoo import uninitialized
from mmkcr.models.tasks import find_backbone, find_task

DCS = [path for path in CONFIGS if path.startswith('configs/dcs/')]
DETECTION = [path for path in DCS if '/detection/' in path]
IMAGENET = [path for path in DCS if Path(path).parts[2] in ('search', 'retrain')]
# features that the classifier reads
FEATURES = {'mobilevit-small': 640, 'mobilevit-xsmall': 384, 'efficientvit-b1': 1600}


def name_of(path):
    return Path(path).stem


def test_found():
    assert len(DETECTION) == 14 and len(IMAGENET) == 11
    for net in FEATURES:
        stages = {name_of(path).split('_')[0] for path in IMAGENET if f'_{net}_' in path}
        assert stages == {'dcs-search', 'dcs-retrain'}
        assert any(f'ssdlite_{net}_8xb16' in path for path in DETECTION)


@pytest.mark.parametrize('path', IMAGENET, ids=name_of)
def test_settings_of_the_paper(path, load):
    """The paper: search as KCR's, CE + 50 IB after 90 of 300 epochs, 224 or 288 px."""
    config, name = load(path), name_of(path)
    size = 288 if 'r288' in name else 224
    dataset = config.train_dataloader.dataset
    pipeline = dataset.get('dataset', dataset).pipeline
    assert next(t for t in pipeline if t.type == 'RandomResizedCrop').scale == size
    assert next(t for t in config.test_dataloader.dataset.get(
        'dataset', config.test_dataloader.dataset).pipeline
        if t.type == 'CenterCrop').crop_size == size
    task = config.model.get('architecture', config.model)
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


@pytest.mark.parametrize('path', [path for path in DETECTION if path.endswith('_coco.py')],
                         ids=name_of)
def test_detection_settings_of_the_paper(path, load):
    """The settings of the paper's experiments."""
    config, searched = load(path), '_search_' in path
    wrapper, schedulers = config.optim_wrapper, config.param_scheduler
    if searched:
        wrapper, schedulers = wrapper.weights, schedulers.weights
    optimizer, last = wrapper.optimizer, schedulers[-1]
    assert optimizer.type == 'AdamW' and last.type == 'CosineAnnealingLR'
    if 'ssdlite' in path:
        dataset = config.train_dataloader.dataset
        assert config.train_cfg.max_epochs * dataset.times == 200
        assert optimizer.lr == 9e-4
        assert optimizer.lr * last.eta_min_ratio == pytest.approx(1.6e-6)
        assert next(t for t in dataset.dataset.pipeline if t.type == 'Resize').scale == (320, 320)
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
        task = load(path).model
        task = task.get('architecture', task)
        assert normalisation(task.data_preprocessor) == host, path


def scene(side, masked):
    """A batch of two images with two objects, as the data loader gives it."""
    boxes = torch.tensor([[10., 12., 10. + side / 4, 12. + side / 3],
                          [side / 2, side / 2, side - 8., side - 10.]])
    masks = np.zeros((2, side, side), np.uint8)
    for mask, box in zip(masks, boxes.int().tolist()):
        mask[box[1]:box[3], box[0]:box[2]] = 1
    samples = []
    for _ in range(2):
        sample = DetDataSample(metainfo=dict(img_shape=(side, side), ori_shape=(side, side),
                                             scale_factor=(1., 1.)))
        sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.tensor([1, 7]))
        if masked:
            sample.gt_instances.masks = BitmapMasks(masks, side, side)
        samples.append(sample)
    images = list(torch.randint(0, 255, (2, 3, side, side), dtype=torch.uint8))
    return dict(inputs=images, data_samples=samples)


@pytest.mark.parametrize('path', DETECTION, ids=name_of)
def test_detector_builds_and_steps(path, prepared):
    config, masked, searched = prepared(path), 'mask-rcnn' in path, '_search_' in path
    if searched:
        side = 128 if 'digit-scenes' in path else 320
        assert tuple(config.model.price.input_shape) == (3, side, side)
    with uninitialized():
        runner = Runner.from_cfg(config)
        runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        runner.param_schedulers = runner.build_param_scheduler(runner.param_schedulers)
        runner._train_loop = runner.build_train_loop(runner._train_loop)
        runner._val_loop = runner.build_val_loop(runner._val_loop)
    model = revert_sync_batchnorm(runner.model).train()
    backbone = find_backbone(model)
    assert (backbone.structure is None) == ('_dense_' in path or searched)
    assert bool(backbone.gates()) == searched
    assert bool(backbone.masks()) == ('_dense_' not in path)
    assert backbone.init_cfg['type'] == 'Pretrained'
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0, 0.02)
    for module in model.modules():  # as a network starts: else what follows a norm is tiny
        if isinstance(module, (torch.nn.BatchNorm2d, torch.nn.LayerNorm)):
            torch.nn.init.ones_(module.weight)
    if masked:
        task = find_task(model)
        task.train_cfg.rpn_proposal.update(nms_pre=100, max_per_img=20)
        task.roi_head.bbox_sampler.num = 8
    side = 160 if masked else 128
    data = model.data_preprocessor(scene(side, masked), training=True)
    losses = model(**data, mode='loss')
    assert ('loss_price' in losses) == searched
    total, _ = model.parse_losses(losses)
    total.backward()
    assert torch.isfinite(total)
    missing = [name for name, param in model.named_parameters()
               if param.requires_grad and (param.grad is None or not param.grad.isfinite().all())]
    assert not missing
    if not masked:  # mmdet's own SSDHead cannot
        results = model.eval()(**model.data_preprocessor(scene(side, False)), mode='predict')
        assert len(results) == 2 and all('pred_instances' in result for result in results)
    before = next(backbone.parameters()).detach().clone()
    wrappers = runner.optim_wrapper
    for wrapper in wrappers.values() if searched else [wrappers]:
        wrapper.step()
    assert not torch.equal(before, next(backbone.parameters()))
    assert json.dumps(config.val_evaluator.metric) in ('"bbox"', '["bbox", "segm"]')
