"""Graphs with constants folded compute what they computed before."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from mmkcr.deploy.onnx_graph import count_operators, fold_constants


def run(model, *arrays):
    import onnxruntime
    session = onnxruntime.InferenceSession(model.SerializeToString(),
                                           providers=['CPUExecutionProvider'])
    return session.run(None, dict(zip([entry.name for entry in session.get_inputs()], arrays)))


def test_shapes_that_follow_from_the_batch_are_folded_whatever_they_are_written_as():
    """A shape with an entry -1 of its own cannot have another for the batch: it gets its value."""
    nodes = [helper.make_node('Shape', ['images'], ['all']),
             helper.make_node('Gather', ['all', 'zero'], ['batch']),
             helper.make_node('Concat', ['batch', 'rest'], ['shape'], axis=0),
             helper.make_node('Reshape', ['images', 'shape'], ['out'])]
    graph = helper.make_graph(
        nodes, 'g', [helper.make_tensor_value_info('images', TensorProto.FLOAT, ['batch', 4, 3])],
        [helper.make_tensor_value_info('out', TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(value), name)
         for name, value in (('zero', [0]), ('rest', [2, -1]))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8)
    examples = [np.random.rand(size, 4, 3).astype(np.float32) for size in (2, 3)]
    fold_constants(model, examples)
    assert count_operators(model) == {'Reshape': 1}
    assert numpy_helper.to_array(model.graph.initializer[0]).tolist() == [-1, 2, 6]
    for size in (1, 2, 5):
        x = np.random.rand(size, 4, 3).astype(np.float32)
        np.testing.assert_array_equal(run(model, x)[0], x.reshape(size, 2, 6))
