"""Whole detectors by mmdeploy, where it is; what is refused without it."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from mmkcr.apis.build import build_model, load_config
from mmkcr.apis.end_to_end import export_end_to_end, require_mmdeploy

CONFIGS = Path(__file__).parents[2] / 'configs/kcr'
DETECTOR = CONFIGS / 'detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
SHAPE = (3, 64, 64)


def detector():
    config = load_config(DETECTOR)
    config.model.backbone.arch = dict(embed_dims=12, depths=[2, 2], num_heads=[2, 2])
    config.model.neck.update(in_channels=[12, 24], out_channels=16)
    for head in ('bbox_roi_extractor', 'mask_roi_extractor'):
        config.model.roi_head[head].out_channels = 16
    config.model.rpn_head.in_channels = 16
    config.model.roi_head.bbox_head.in_channels = 16
    config.model.roi_head.mask_head.in_channels = 16
    torch.manual_seed(0)
    return config, build_model(config)


def test_boxes_and_masks_at_another_size(tmp_path):
    pytest.importorskip('mmdeploy')
    import onnxruntime
    config, model = detector()
    found = export_end_to_end(config, model, tmp_path / 'detector.onnx', SHAPE, 1)
    assert found.seconds > 0 and not found.metrics
    session = onnxruntime.InferenceSession(str(found.path), providers=['CPUExecutionProvider'])
    for size in ((64, 64), (96, 80)):
        boxes, labels, masks = session.run(None, dict(input=np.random.default_rng(0).normal(
            size=(1, 3, *size)).astype('float32')))
        assert boxes.shape[-1] == 5 and boxes.shape[:2] == labels.shape == masks.shape[:2]
        assert (boxes[..., 2] <= size[1] + 1e-3).all() and (boxes[..., 3] <= size[0] + 1e-3).all()


def test_without_mmdeploy(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(ImportError, match='`mmdeploy` .*, found none: pip install onedl-mmdeploy'):
        require_mmdeploy()


def test_others_than_detectors(tmp_path):
    config = load_config(CONFIGS / 'digits/kcr-dense_vit-mini_1xb64_digits.py')
    with pytest.raises(ValueError, match='a detector of mmdet, found `ImageClassifier`'):
        export_end_to_end(config, build_model(config), tmp_path / 'x.onnx', SHAPE)
