"""Whole detectors and segmentors by mmdeploy, where it is; what is refused without it."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lab.model_zoo import random_subnet
from mmkcr.deploy.end_to_end import export_end_to_end
from mmkcr.deploy.latency_table import ensure_search_space
from mmkcr.engine.build import build_model, load_config

CONFIGS = Path(__file__).parents[2] / 'configs/kcr'
DETECTOR = CONFIGS / 'detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes.py'
SEGMENTOR = CONFIGS / 'segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes.py'
SHAPE = (3, 64, 64)


def detector(**boxes):
    config = load_config(DETECTOR)
    config.model.roi_head.bbox_head.update(boxes)
    config.model.backbone.arch = dict(embed_dims=12, depths=[2, 2], num_heads=[2, 2])
    config.model.neck.update(in_channels=[12, 24], out_channels=16)
    for head in ('bbox_roi_extractor', 'mask_roi_extractor'):
        config.model.roi_head[head].out_channels = 16
    config.model.rpn_head.in_channels = 16
    config.model.roi_head.bbox_head.in_channels = 16
    config.model.roi_head.mask_head.in_channels = 16
    torch.manual_seed(0)
    return config, build_model(config)


def test_the_boxes_are_those_of_pytorch(tmp_path):
    """Proposals are suppressed within a level, and none for a low score (mmdeploy does both)."""
    pytest.importorskip('mmdeploy')
    import onnxruntime
    from mmdet.structures import DetDataSample
    # mmdeploy has one box for all classes of a proposal, that of the likeliest
    config, model = detector(reg_class_agnostic=True)
    generator = torch.Generator().manual_seed(0)
    for layer in (model.rpn_head.rpn_cls, model.rpn_head.rpn_reg, model.roi_head.bbox_head.fc_cls,
                  model.roi_head.bbox_head.fc_reg):
        layer.weight.data = torch.randn(layer.weight.shape, generator=generator) * 0.05
    model.rpn_head.rpn_cls.bias.data.fill_(-4.)  # scores of about 0.02
    model.eval()
    path = tmp_path / 'detector.onnx'
    export_end_to_end(config, model, path, SHAPE, 1)
    session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    for height, width in ((64, 64), (96, 128)):
        images = torch.randn(1, 3, height, width, generator=generator)
        sample = DetDataSample(metainfo=dict(dict.fromkeys(
            ('img_shape', 'ori_shape', 'pad_shape', 'batch_input_shape'), (height, width)),
            scale_factor=(1., 1.)))
        with torch.no_grad():
            expected = model.predict(images, [sample])[0].pred_instances
        boxes, labels, masks = session.run(None, dict(input=images.numpy()))
        assert boxes.shape[:2] == labels.shape == masks.shape[:2]
        count = int((labels[0] >= 0).sum())
        assert len(expected) == count > 10
        wanted = torch.cat([expected.bboxes, expected.scores[:, None]], 1)
        torch.testing.assert_close(torch.from_numpy(boxes[0, :count]), wanted, rtol=0, atol=1e-2)


@pytest.mark.parametrize('slim', [False, True])
def test_the_classes_of_pixels_are_those_of_pytorch(slim, tmp_path):
    pytest.importorskip('mmdeploy')
    import onnxruntime
    from mmseg.structures import SegDataSample
    config = load_config(SEGMENTOR)
    torch.manual_seed(0)
    model = build_model(config)
    if slim:
        ensure_search_space(model, ['mlp_hidden', 'head_channels'])
        model, structure = random_subnet(model, 0.6, (3, 128, 128), 'backbone')
        assert structure.macs['subnet'] < 0.6 * structure.macs['dense']
    model.eval()
    path = tmp_path / 'segmentor.onnx'
    timing, metrics = export_end_to_end(config, model, path, (3, 128, 128), 1)
    assert min(timing.slim) > 0 and not metrics
    session = onnxruntime.InferenceSession(str(path), providers=['CPUExecutionProvider'])
    for batch, height, width in ((1, 128, 128), (2, 96, 160)):
        images = torch.randn(batch, 3, height, width)
        labels, = session.run(None, dict(input=images.numpy()))
        assert labels.shape == (batch, 1, height, width)
        samples = [SegDataSample(metainfo=dict.fromkeys(
            ('img_shape', 'ori_shape', 'pad_shape'), (height, width))) for _ in images]
        with torch.no_grad():
            expected = torch.stack([sample.pred_sem_seg.data
                                    for sample in model.predict(images, samples)]).numpy()
        assert len(np.unique(expected)) > 1
        assert (labels == expected).mean() > 0.999


def test_two_networks_are_timed_in_turns(tmp_path, monkeypatch):
    pytest.importorskip('mmdeploy')
    from mmkcr.deploy import end_to_end
    config, model = detector()
    first, second = tmp_path / 'first.onnx', tmp_path / 'second.onnx'
    export_end_to_end(config, model, first, SHAPE, 1)
    given, whole = [], end_to_end.measure_pair
    monkeypatch.setattr(end_to_end, 'measure_pair', lambda dense, slim, *args, **kwargs: (
        given.append((Path(dense).read_bytes(), Path(slim).read_bytes())),
        whole(dense, slim, *args, **kwargs))[1])
    timing, _ = export_end_to_end(config, model, second, SHAPE, 2, against=first)
    assert given == [(first.read_bytes(), second.read_bytes())]
    assert len(timing.dense) == len(timing.slim) == 2


def test_without_mmdeploy(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'mmdeploy', None)
    with pytest.raises(ImportError, match='`mmdeploy` .*, found none: pip install onedl-mmdeploy'):
        export_end_to_end(*detector(), tmp_path / 'x.onnx', SHAPE)


@pytest.mark.parametrize('path, changes, against, message', [
    (DETECTOR, {}, 'none.onnx', 'an ONNX file at `.*none.onnx`, found none'),
    (SEGMENTOR, {'model.test_cfg': dict(mode='slide', crop_size=(64, 64), stride=(32, 32))}, None,
     "on whole images, found `test_cfg.mode` 'slide'"),
    (CONFIGS / 'digits/kcr-dense_vit-mini_1xb64_digits.py', {}, None,
     'of mmdet or segmentor of mmseg, found `ImageClassifier`')])
def test_refusals(path, changes, against, message, tmp_path):
    config = load_config(path, changes)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        export_end_to_end(config, build_model(config), tmp_path / 'x.onnx', SHAPE,
                          against=against and tmp_path / against)
