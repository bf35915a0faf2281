"""ONNX of a detector: its backbone with the slimmed Swin, and its neck."""

import copy
from pathlib import Path

import onnx
import torch
from mmengine.config import ConfigDict

from mmkcr.apis import count_macs, slim
from mmkcr.deploy.export import compare_onnx, export_onnx, onnx_macs
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.engine.build import build_model, load_config

CONFIG = Path(__file__).parents[2] / (
    'configs/kcr/detection/kcr-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py')


def test_backbone_and_neck_at_two_image_sizes(tmp_path):
    """With position embeddings."""
    config = load_config(CONFIG)
    config.model = ConfigDict(copy.deepcopy(config.model.architecture))
    config.model.backbone.update(
        arch=dict(embed_dims=12, depths=[2, 2], num_heads=[2, 2]), use_abs_pos_embed=True)
    config.model.neck.update(in_channels=[12, 24], out_channels=16)
    supernet = build_model(config)
    torch.manual_seed(0)
    for name, parameter in supernet.named_parameters():
        parameter.data.normal_(0, 0.2)
        if name.endswith('alpha'):
            parameter.data.normal_(0.5)
    model = slim(supernet, 0.8, 1, (3, 64, 64))[0]
    report = export_onnx(model, tmp_path / 'detector.onnx', (3, 64, 64), batch_sizes=(1, 3))
    assert report.dynamic_size and not report.notice, report.notice
    assert max(report.errors.values()) < 1e-5
    # sizes that the export has not seen, not divisible by the window or the strides
    sizes = [(1, 3, 75, 90), (2, 3, 131, 58)]
    assert max(compare_onnx(TensorModel(model), report.path, sizes).values()) < 1e-5
    whole = TensorModel(model).count_macs((3, 64, 64))
    assert onnx_macs(report.path) == whole > count_macs(model.backbone, (3, 64, 64))
    names = [entry.name for entry in onnx.load(report.path).graph.output]
    assert names == [f'output{level}' for level in range(4)]
    with torch.no_grad():
        maps = TensorModel(model)(torch.zeros(sizes[0]))
    assert [tuple(level.shape[1:]) for level in maps] == [
        (16, 19, 23), (16, 10, 12), (16, 5, 6), (16, 3, 3)]
