"""Every detection config is built, and takes a training step on an image of a true shape.

The config's own transforms make the image: the largest for Mask R-CNN with the KCR-Swin-T, for its
cascade a square one of the shortest side. Others of the same transforms take a small image.
"""

import random

import config_files as runs
import numpy as np
import pytest
import torch
from config_files import CONFIGS
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks

from long_form import every_nth, few
from mmkcr.engine.build import default_shape
from mmkcr.models.tasks import find_backbone, find_task

DETECTION = [path for path in CONFIGS if path.startswith('configs/kcr/detection/')]
COCO = [path for path in DETECTION if path.endswith('_coco.py')]
TRUE_SHAPE = [path for path in COCO if path.endswith('_swin-tiny_8xb2_coco.py')]
CASCADES = [path for path in COCO if 'cascade' in path]


def test_found():
    assert len(DETECTION) == 9 and len(COCO) == 6 and len(CASCADES) == 4 and len(TRUE_SHAPE) == 2
    for arch in ('tiny', 'base'):
        assert {runs.stage_of(path) for path in CASCADES if arch in path} == {'dense', None}


@pytest.mark.parametrize('path', every_nth(2, few(
    tuple(DETECTION), *(path for path in DETECTION if 'swin-base' not in path and
                        'kcr-cascade-mask-rcnn_swin-tiny_8xb2' not in path))))
def test_builds_and_takes_a_step(path, load, prepared):
    config = prepared(path)
    shape = (3, 800, 1280) if path in COCO else (3, 128, 128)
    if 'price' in config.model:
        assert tuple(config.model.price.input_shape) == shape
        config.model.price.input_shape = (3, 64, 64)  # counted once, which takes time
    runner = runs.build(config)
    task, stage = find_task(runner.model), runs.stage_of(path)
    heads = [m for m in task.roi_head.modules() if hasattr(m, 'num_classes')]
    assert {head.num_classes for head in heads} == {len(runner.train_dataloader.dataset.metainfo[
        'classes'])} == {80 if path in COCO else 10}
    runs.check_state(path, runner.model)
    assert type(runner.model).__name__ == ('SearchModel' if stage == 'search' else
                                           'CascadeRCNN' if path in CASCADES else 'MaskRCNN')
    initial = find_backbone(runner.model).init_cfg or {}
    assert (initial.get('type') == 'Pretrained') == (stage != 'slim')
    runs.check_run(runner)
    assert [type(hook).__name__ for hook in runner.hooks].count('ExactResumeHook') == 1
    assert 'price' in config.model or default_shape(load(path), runner.model) == shape
    model = runs.ready_to_train(runner)
    runs.few_rois(model)
    transforms = runner.train_dataloader.dataset.pipeline.transforms
    assert [type(t).__name__ for t in transforms[:2]] == ['LoadImageFromFile', 'LoadAnnotations']
    losses = runs.backward(model, batch_of(path, transforms[2:]))
    assert ('loss_kcr' in losses) == ('loss_price' in losses) == (stage == 'search')
    runs.check_steps(runner)


def annotated(height, width, classes):
    """An image with two objects, as it is loaded."""
    boxes = np.array([[.1, .2, .4, .5], [.5, .5, .9, .8]]) * [width, height, width, height]
    masks = np.zeros((2, height, width), np.uint8)
    for mask, box in zip(masks, boxes.astype(int)):
        mask[box[1]:box[3], box[0]:box[2]] = 1
    return dict(
        img=np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8),
        img_path='', img_id=0, img_shape=(height, width), ori_shape=(height, width),
        gt_bboxes=HorizontalBoxes(torch.tensor(boxes, dtype=torch.float32)),
        gt_bboxes_labels=np.array([1, classes - 1]), gt_ignore_flags=np.zeros(2, bool),
        gt_masks=BitmapMasks(masks, height, width))


def batch_of(path, transforms):
    """A batch of one image; what transforms draw is drawn until the image has the shape."""
    if path not in TRUE_SHAPE:
        shape = wanted = (128, 128)
        transforms = [one for one in transforms if type(one).__name__ != 'RandomChoice'
                      and 'Resize' not in type(one).__name__]
    elif path in CASCADES:
        shape, wanted = (640, 640), (480, 480)
    else:
        shape = wanted = (224, 1333)  # wide: fewer pixels at the config's own scale
    for seed in range(500):
        np.random.seed(seed)
        random.seed(seed)
        sample = annotated(*shape, 80 if path in COCO else 10)
        for transform in transforms:
            sample = transform(sample)
        if sample['inputs'].shape[1:] == wanted and len(sample['data_samples'].gt_instances) == 2:
            return {key: [value] for key, value in sample.items()}
    raise AssertionError(f'no image of {wanted}')


@pytest.mark.parametrize('path', [path for path in CASCADES if runs.stage_of(path) != 'search'])
def test_settings_of_the_paper(path, load):
    """The paper: 3x, short side 480 to 800, long side 1333, AdamW 1e-4, decay 0.05, batch 16."""
    config = load(path)
    assert config.train_cfg.max_epochs == 36
    assert config.param_scheduler[1].milestones == [27, 33]
    optimizer = config.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('AdamW', 1e-4, 0.05)
    assert config.train_dataloader.batch_size * 8 == config.auto_scale_lr.base_batch_size == 16
    choices, = runs.transforms(config, 'train', 'RandomChoice')
    for choice in choices.transforms:  # the last step decides what the model sees
        assert choice[-1].keep_ratio and {long for _, long in choice[-1].scales} == {1333}
        assert [short for short, _ in choice[-1].scales] == list(range(480, 801, 32))
    assert config.model.type == 'CascadeRCNN' and 'mask_head' in config.model.roi_head
