"""Operators that a runtime or ONNX lacks are told by name and block."""

import onnx
import pytest
import torch
from mmpretrain.models import VisionTransformer
from onnx import TensorProto, helper
from torch import nn

from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.runtimes import open_onnx

SHAPE = (3, 32, 32)
VIT = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64),
           img_size=32, patch_size=8, out_type='featmap')


@pytest.mark.parametrize('runtime', ['onnxruntime', 'openvino'])
@pytest.mark.parametrize('domain', ['', 'own.ops'])
def test_an_operator_that_a_runtime_lacks(runtime, domain, tmp_path):
    pytest.importorskip(runtime)
    path = export_onnx(VisionTransformer(**VIT), tmp_path / 'vit.onnx', SHAPE, False, (1, )).path
    model = onnx.load(path)
    # the activations of both MLPs are computed by an operator that nobody has
    found = [node for node in model.graph.node if node.op_type == 'Erf']
    assert len(found) == 2
    for node in found:
        node.op_type, node.domain = 'Unheard', domain
    if domain:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    onnx.save(model, path)
    with pytest.raises(ValueError) as caught:
        open_onnx(path, runtime)
    said = str(caught.value)
    # the name of a node may be all that ONNX Runtime says, then it is the first
    blocks = ['`layers.0.ffn.layers.0.1`', '`layers.1.ffn.layers.0.1`']
    assert said in [f'expected a graph of operators that `{runtime}` has, found `Unheard` in '
                    f'{", ".join(blocks[:count])} of `{path}`' for count in (1, 2)]
    assert isinstance(VisionTransformer(**VIT).get_submodule(blocks[0].strip('`')), nn.GELU)


def test_a_type_of_numbers_that_an_operator_lacks(tmp_path):
    """The runtime names the node; in a file of someone else's that is all there is."""
    values = [helper.make_tensor_value_info(entry, TensorProto.FLOAT, [1, *SHAPE])
              for entry in ('images', 'output')]
    for name, place in (('/model/neck/neck.1/Erf', 'neck.1'), ('/model/Erf', '/model/Erf'),
                        ('Erf_7', 'Erf_7')):
        nodes = [helper.make_node('Erf', ['images'], ['fine']),  # of a type that it knows
                 helper.make_node('Cast', ['fine'], ['wide'], to=TensorProto.DOUBLE),
                 helper.make_node('Erf', ['wide'], ['erf'], name=name),
                 helper.make_node('Cast', ['erf'], ['output'], to=TensorProto.FLOAT)]
        graph = helper.make_graph(nodes, 'g', values[:1], values[1:])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)],
                                    ir_version=8), tmp_path / 'm.onnx')
        with pytest.raises(ValueError, match=f'`onnxruntime` has, found `Erf` in `{place}` of '):
            open_onnx(tmp_path / 'm.onnx')


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


class Sorts(nn.Module):
    """Calls an operator that ONNX has, in a way that it does not."""

    def forward(self, x):
        return torch.sort(x, dim=1, stable=True)[0]


BLOCK = r'\(in `layers.1.ffn.dropout_layer.1`\)$'


@pytest.mark.parametrize('own, message', [
    (Lacks, f'.*aten::special_bessel_j0.* {BLOCK}'), (Sorts, f'.*operator Sort.* {BLOCK}'),
    (Refuses, 'no tracing$')])
def test_a_block_that_cannot_be_exported(own, message, tmp_path):
    model = VisionTransformer(**VIT)
    model.layers[1].ffn.dropout_layer = nn.Sequential(nn.Identity(), own())
    with pytest.raises(ValueError, match='expected a model that can be exported to ONNX, found '
                       f'`VisionTransformer`, which cannot: {message}'):
        export_onnx(model, tmp_path / 'm.onnx', SHAPE, False, (1, ))
    assert not list(tmp_path.iterdir())
