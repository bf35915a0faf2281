"""Operators that a runtime or ONNX lacks are told by their name, in one sentence."""

import onnx
import pytest
import torch
from mmpretrain.models import VisionTransformer
from torch import nn

from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.runtimes import open_onnx

SHAPE = (3, 32, 32)
VIT = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64),
           img_size=32, patch_size=8, out_type='featmap')


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
def test_an_operator_that_a_runtime_lacks(runtime, tmp_path):
    pytest.importorskip(runtime)
    path = export_onnx(VisionTransformer(**VIT), tmp_path / 'vit.onnx', SHAPE, False, (1, )).path
    model = onnx.load(path)
    # the activations of both MLPs are computed by an operator that nobody has
    found = [node for node in model.graph.node if node.op_type == 'Erf']
    assert len(found) == 2
    for node in found:
        node.op_type = 'Unheard'
    onnx.save(model, path)
    with pytest.raises(ValueError, match=f'that `{runtime}` can run, found `.*vit.onnx` .*Unheard'):
        open_onnx(path, runtime)


class Lacks(nn.Module):
    """Calls an operator that ONNX does not have."""

    def forward(self, x):
        return torch.special.bessel_j0(x)


class Refuses(nn.Module):
    """Cannot be traced."""

    def forward(self, x):
        if torch.jit.is_tracing():
            raise TypeError('no tracing\nhere')
        return x


@pytest.mark.parametrize('own, message', [(Lacks, '.*aten::special_bessel_j0'),
                                          (Refuses, 'no tracing$')])
def test_a_block_that_cannot_be_exported(own, message, tmp_path):
    model = VisionTransformer(**VIT)
    model.layers[1].ffn.dropout_layer = nn.Sequential(nn.Identity(), own())
    with pytest.raises(ValueError, match='expected a model that can be exported to ONNX, found '
                       f'`VisionTransformer`, which cannot: {message}'):
        export_onnx(model, tmp_path / 'm.onnx', SHAPE, False, (1, ))
    assert not list(tmp_path.iterdir())
