"""Graphs with constants folded and projections split compute what they computed before."""

import numpy as np
import onnx
import pytest
import timm
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from mmkcr.apis.export import export_onnx
from mmkcr.apis.latency import random_subnet
from mmkcr.deploy.onnx_graph import (
    count_operators,
    fold_constants,
    narrow_indices,
    split_projections,
)
from mmkcr.models import DWConvVisionTransformer, KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models.search_space import SearchSpace

SHAPE = (3, 32, 32)
VIT = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=4, feedforward_channels=64),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=16, depths=[1, 2], num_heads=[2, 4]), img_size=32,
            window_size=4, patch_size=4, out_indices=[1])


def heads(model):
    SearchSpace.of_dense(model, ['heads'])
    return random_subnet(model, '95%', SHAPE, divisor=1)[0]


def convolved():
    """One block keeps its heads, one has half of them and one none."""
    model = DWConvVisionTransformer(**{**VIT, 'arch': dict(VIT['arch'], num_layers=3)},
                                    with_cls_token=False, out_type='featmap', operator='dwconv')
    model.slice_to(model.structure_for({
        site: torch.arange(kept) for site, kept in zip(model.sites(), (4, 2, 0))}))
    return model


@pytest.mark.parametrize('make, blocks', [
    (convolved, 2),
    (lambda: KCRVisionTransformer(**VIT), 2), (lambda: heads(KCRVisionTransformer(**VIT)), 2),
    (lambda: KCRSwinTransformer(**SWIN), 3), (lambda: heads(KCRSwinTransformer(**SWIN)), 3),
    (lambda: timm.create_model('vit_tiny_patch16_224', img_size=32, depth=2), 2)])
def test_projections_of_every_host_are_split(make, blocks, tmp_path):
    """Not for TensorRT, which is compared in PyTorch's own graph; the outputs are checked."""
    torch.manual_seed(0)
    model = make()
    report = export_onnx(model, tmp_path / 'm.onnx', SHAPE, runtime='onnxruntime')
    assert max(report.errors.values()) < 1e-5
    graph = onnx.load(report.path)
    onnx.checker.check_model(graph, full_check=True)
    transposed = [attribute.ints for node in graph.graph.node if node.op_type == 'Transpose'
                  for attribute in node.attribute]
    assert [2, 0, 3, 1, 4] not in [list(perm) for perm in transposed]
    assert [list(perm) for perm in transposed].count([0, 2, 1, 3]) >= 3 * blocks
    assert split_projections(graph) == 0  # nothing is left
    if make is convolved:  # windows are shifted by slices
        assert 'Slice' not in report.operators and 'Split' not in report.operators
    # where sizes are fixed nothing computes shapes but the batch's of class tokens
    assert report.operators.get('Shape', 0) <= 1


def run(model, *arrays):
    import onnxruntime
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=['CPUExecutionProvider'])
    return session.run(None, dict(zip([entry.name for entry in session.get_inputs()], arrays)))


def graph_of(nodes, weights, sizes, outputs):
    inputs = [helper.make_tensor_value_info('images', TensorProto.FLOAT, sizes)]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, 'g', inputs, outputs, [
        numpy_helper.from_array(value, name) for name, value in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('shared', [False, True])
def test_a_projection_with_another_reader_stays(bias, shared):
    """What someone else reads, such as the projection itself, cannot go."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node('MatMul', ['images', 'w'], ['p']),
             *([helper.make_node('Add', ['p', 'b'], ['s'])] if bias else ()),
             helper.make_node('Reshape', ['s' if bias else 'p', 'shape'], ['r']),
             helper.make_node('Transpose', ['r'], ['t'], perm=[2, 0, 3, 1, 4]),
             *(helper.make_node('Gather', ['t', f'i{i}'], [name], axis=0)
               for i, name in enumerate('qkv'))]
    weights = dict(w=rng.normal(size=(6, 24)).astype(np.float32),
                   b=rng.normal(size=24).astype(np.float32),
                   shape=np.array([-1, 5, 3, 2, 4]), **{f'i{i}': np.array(i) for i in range(3)})
    model = graph_of(nodes, weights, ['batch', 5, 6], ['q', 'k', 'v', *(['p'] if shared else ())])
    if shared:
        model.graph.node.append(helper.make_node('Relu', ['p'], ['other']))
        model.graph.output.append(helper.make_tensor_value_info('other', TensorProto.FLOAT, None))
    x = rng.normal(size=(2, 5, 6)).astype(np.float32)
    expected = run(model, x)
    assert split_projections(model) == (0 if shared else 1)
    for a, b in zip(run(model, x), expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert ('Gather' in count_operators(model)) == shared


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('other', [None, 'Relu', 'axis', 'output'])
def test_slices_of_a_product_become_products(bias, other):
    """If nothing else reads the product, and of its last axis."""
    rng = np.random.default_rng(0)
    product = 's' if bias else 'p'
    nodes = [helper.make_node('MatMul', ['images', 'w'], ['p']),
             *([helper.make_node('Add', ['b', 'p'], ['s'])] if bias else ()),
             *(helper.make_node('Slice', [product, first, last, axis, 'one'], [name])
               for name, first, last, axis in (
                   ('head', 'zero', 'four', 'end'),
                   ('tail', 'four', 'far', 'one' if other == 'axis' else 'end')))]
    weights = dict(w=rng.normal(size=(6, 7)).astype(np.float32),
                   b=rng.normal(size=7).astype(np.float32), end=np.array([-1]),
                   **{name: np.array([value]) for name, value in dict(
                       zero=0, one=1, four=4, far=2**31 - 1).items()})
    if not bias:
        del weights['b']
    if other == 'Relu':
        nodes.append(helper.make_node('Relu', [product], ['relu']))
    more = dict(Relu=['relu'], output=[product]).get(other, [])
    model = graph_of(nodes, weights, ['batch', 5, 6], ['head', 'tail', *more])
    x = rng.normal(size=(2, 5, 6)).astype(np.float32)
    expected = run(model, x)
    assert split_projections(model) == 0
    for a, b in zip(run(model, x), expected):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert ('Slice' in count_operators(model)) == (other is not None)
    assert count_operators(model)['MatMul'] == (2 if other is None else 1)


def test_shapes_that_follow_from_the_batch_are_folded_whatever_they_are_written_as():
    """A shape with an entry -1 of its own cannot have another for the batch: it gets its value."""
    nodes = [helper.make_node('Shape', ['images'], ['all']),
             helper.make_node('Gather', ['all', 'zero'], ['batch']),
             helper.make_node('Concat', ['batch', 'rest'], ['shape'], axis=0),
             helper.make_node('Reshape', ['images', 'shape'], ['out'])]
    model = graph_of(nodes, dict(zero=np.array([0]), rest=np.array([2, -1])), ['batch', 4, 3],
                     ['out'])
    examples = [np.random.rand(size, 4, 3).astype(np.float32) for size in (2, 3)]
    expected = run(model, examples[0])
    fold_constants(model, examples)
    assert count_operators(model) == {'Reshape': 1}
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == [-1, 2, 6]
    for size in (1, 2, 5):
        x = np.random.rand(size, 4, 3).astype(np.float32)
        np.testing.assert_array_equal(run(model, x)[0], x.reshape(size, 2, 6))
    np.testing.assert_array_equal(run(model, examples[0])[0], expected[0])


def test_other_shapes_are_computed_from_one_that_is_read_once():
    """Multiples of the batch and constants; what follows from it in another way is left alone."""
    nodes = []
    for i in '01':  # the same index for all tokens, found twice from different shapes
        nodes += [helper.make_node('Relu', ['images'], [f'x{i}']),
                  helper.make_node('Reshape', [f'x{i}', 'tokens'], [f'rows{i}']),
                  helper.make_node('Shape', [f'rows{i}'], [f'all{i}']),
                  helper.make_node('Gather', [f'all{i}', 'zero'], [f'count{i}']),
                  helper.make_node('Concat', [f'count{i}', f'width{i}'], [f'shape{i}'], axis=0),
                  helper.make_node('Expand', [f'index{i}', f'shape{i}'], [f'indices{i}']),
                  helper.make_node('GatherElements', [f'rows{i}', f'indices{i}'], [f'out{i}'],
                                   axis=1)]
    nodes += [helper.make_node('Mul', ['count0', 'count0'], ['square']),
              helper.make_node('Expand', ['one', 'square'], ['out2'])]
    indices = [np.array([2, 0]), np.array([1, 1, 2])]
    weights = dict(tokens=np.array([-1, 3]), zero=np.array([0]), one=np.ones(1, np.float32),
                   index0=indices[0], index1=indices[1], width0=np.array([2]), width1=np.array([3]))
    model = graph_of(nodes, weights, ['batch', 4, 3], ['out0', 'out1', 'out2'])
    fold_constants(model, [np.zeros((size, 4, 3), np.float32) for size in (2, 3)])
    found = count_operators(model)
    # one pair of nodes for both indices, and one for the number of tokens that is squared
    assert 'Concat' not in found and found['Shape'] == found['Gather'] == 1
    assert (found['Mul'], found['Add'], found['Expand']) == (2 + 1, 2, 3)
    for size in (1, 2, 5):
        x = np.random.rand(size, 4, 3).astype(np.float32)
        *gathered, other = run(model, x)
        for values, index in zip(gathered, indices):
            np.testing.assert_array_equal(values, x.reshape(-1, 3)[:, index])
        assert other.shape == ((4 * size)**2, )


def test_indices_are_narrow():
    index = np.array([2, 0])
    nodes = [helper.make_node('Expand', ['index', 'shape'], ['indices']),
             helper.make_node('GatherElements', ['images', 'indices'], ['out'], axis=1)]
    model = graph_of(nodes, dict(index=index, shape=np.array([4, 2])), [4, 3], ['out'])
    narrow_indices(model)
    stored = {weight.name: weight.data_type for weight in model.graph.initializer}
    assert sorted(stored.values()) == [TensorProto.INT32, TensorProto.INT64]  # and the shape
    x = np.random.rand(4, 3).astype(np.float32)
    np.testing.assert_array_equal(run(model, x)[0], x[:, index])


def test_indices_that_something_else_reads_stay():
    nodes = [helper.make_node('Expand', ['index', 'shape'], ['indices']),
             helper.make_node('GatherElements', ['images', 'indices'], ['out'], axis=1),
             helper.make_node('Add', ['indices', 'one'], ['sum']),
             helper.make_node('Cast', ['sum'], ['next'], to=TensorProto.FLOAT)]
    model = graph_of(nodes, dict(index=np.array([2, 0]), shape=np.array([4, 2]),
                                 one=np.array([1])), [4, 3], ['out', 'next'])
    narrow_indices(model)
    x = np.random.rand(4, 3).astype(np.float32)
    out, after = run(model, x)
    np.testing.assert_array_equal(out, x[:, [2, 0]])
    np.testing.assert_array_equal(after, np.tile([3., 1.], (4, 1)))


def test_three_heads_are_not_three_projections(tmp_path):
    """The split must be along queries, keys and values."""
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(12, 36)

        def forward(self, x):
            parts = self.qkv(x[:, 0]).reshape(x.shape[0], -1, 3, 3, 4).permute(2, 0, 3, 1, 4)
            one, two, three = parts.unbind(2)
            return (one + 2 * two + 3 * three).transpose(0, 1)

    torch.manual_seed(0)
    report = export_onnx(Heads().eval(), tmp_path / 'heads.onnx', (1, 6, 12), False)
    assert max(report.errors.values()) < 1e-5
