"""ONNX of subnets of a bi-mask search: any batch, height and width, the same numbers."""

import pytest
import torch

from mmkcr.apis import slim
from mmkcr.deploy.export import compare_onnx, export_onnx
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.models import OFBResNet, OFBSwinTransformer, OFBVisionTransformer

VIT = dict(arch=dict(embed_dims=24, num_layers=2, num_heads=2, feedforward_channels=48),
           img_size=32, patch_size=8, out_type='featmap', out_indices=[0, 1])
SWIN = dict(arch=dict(embed_dims=12, depths=[2, 2], num_heads=[2, 3]), img_size=56, window_size=4,
            patch_size=4, pad_small_map=True, out_indices=[0, 1])
RESNET = dict(depth=50, num_stages=2, strides=(1, 2), dilations=(1, 1), base_channels=8,
              stem_channels=8, out_indices=(0, 1))


@pytest.mark.parametrize('cls, kwargs', [
    (OFBVisionTransformer, VIT), (OFBSwinTransformer, SWIN), (OFBResNet, RESNET)],
    ids=['vit', 'swin', 'resnet'])
def test_onnx_of_subnets(cls, kwargs, tmp_path):
    torch.manual_seed(1)
    model = slim(cls(**kwargs, gates=dict(type='mmkcr.BiMaskGate')), 0.5, 1, (3, 56, 56))[0]
    model.train(False)
    report = export_onnx(model, tmp_path / 'model.onnx', (3, 56, 56))
    assert report.dynamic_size and max(report.errors.values()) < 1e-4
    others = [(1, 3, 64, 64), (3, 3, 37, 53)]
    assert max(compare_onnx(TensorModel(model), report.path, others).values()) < 1e-4
