"""Folding whatever in an ONNX graph does not depend on the image into constants.

A traced graph recomputes shapes, indices, position embeddings and masks for every image, in
many small nodes. Here they are evaluated once, at some input shapes that the file must support.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

#: Operators that read the shape of their input and none of its values.
_OF_SHAPES = ('Shape', 'Size')


def fold_constants(model: Any, images: Sequence[np.ndarray]) -> Any:
    """Replace values that are the same for all images by constants, in place.

    ONNX Runtime computes all values that depend only on shapes, for every example. Values that
    are equal for all examples become constants, equal ones only once. In the shape of a reshape
    one entry may differ (the batch) and becomes -1. Padding by nothing, and nodes that are no
    longer needed, are removed.

    Args:
        model (onnx.ModelProto): A model with one input, the images.
        images (Sequence[np.ndarray]): Examples (B, C, H, W) of all shapes that the file must
            support: at least two batch sizes if the batch is dynamic, and so on.

    Returns:
        onnx.ModelProto: The model.

    Raises:
        ValueError: ONNX Runtime does not compute the graph for an example.
    """
    from onnx import numpy_helper
    graph = model.graph
    # the shape of every reshaped value will be computed under a new name
    reshapes = {node.output[0]: f'{node.output[0]}_shape' for node in graph.node
                if node.op_type == 'Reshape'}
    values = _evaluate(model, _from_shapes(graph), reshapes, images)
    constants = {name: found[0] for name, found in values.items()
                 if all(np.array_equal(found[0], other) for other in found[1:])}
    for node in graph.node:
        # its target shape is computed and varies: it may still be constant but for one entry
        if node.op_type == 'Reshape' and node.input[1] in values.keys() - constants.keys():
            shape = _with_free_entry(values[reshapes[node.output[0]]])
            if shape is not None:
                node.input[1] = reshapes[node.output[0]]
                constants[node.input[1]] = shape
    _bypass(graph, constants)
    # from the outputs back: a node stays if one of its outputs is needed and not known
    kept, needed = [], {output.name for output in graph.output}
    for node in reversed(graph.node):
        outputs = set(filter(None, node.output)) & needed
        if outputs - constants.keys():
            kept.append(node)
            needed |= _inputs(node)
    computed = {name for node in kept for name in node.output}
    first: dict[Any, str] = {}  # the first constant with a value stands for all equal ones
    names = {name: first.setdefault((value.dtype.str, value.shape, value.tobytes()), name)
             for name, value in constants.items() if name in needed - computed}
    weights = [weight for weight in graph.initializer if weight.name in needed]
    # protobuf fields can only be emptied and refilled
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)
    graph.initializer.extend(numpy_helper.from_array(constants[name], name)
                             for name in dict.fromkeys(names.values()))
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    return model


def _bypass(graph: Any, constants: dict[str, np.ndarray]) -> None:
    """Make readers of a padding by nothing read its input instead."""
    from onnx import numpy_helper
    known = {weight.name: weight for weight in graph.initializer}
    padded = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = padded.get(name, name)
        if node.op_type == 'Pad':
            name = node.input[1]
            # unknown pads count as non-zero
            pads = constants[name] if name in constants else \
                numpy_helper.to_array(known[name]) if name in known else np.ones(1)
            if not pads.any():
                padded[node.output[0]] = node.input[0]


def count_operators(model: Any) -> dict[str, int]:
    """Number of nodes of a graph by operator.

    Args:
        model (onnx.ModelProto): The file's content.
    """
    found: dict[str, int] = {}
    for node in model.graph.node:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def _inputs(node: Any) -> set[str]:
    """Names that a node reads, including those in its sub-graphs."""
    names = set(filter(None, node.input))
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _inputs(inner)
    return names


def _from_shapes(graph: Any) -> list[str]:
    """Tensors that depend at most on the shape of the images."""
    pixels, found = {value.name for value in graph.input}, []
    for node in graph.node:
        if node.op_type in _OF_SHAPES or not _inputs(node) & pixels:
            found += filter(None, node.output)
        else:
            pixels.update(node.output)
    return found


def _evaluate(model: Any, names: Sequence[str], shapes: dict[str, str],
              images: Sequence[np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Values of some tensors, and shapes of others under new names, for every example."""
    import onnx
    import onnxruntime
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    present = {value.name for value in probe.graph.output}
    # ONNX Runtime returns outputs only, so every value that is asked for becomes one
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names
                              if name not in present)
    for name, of_shape in shapes.items():
        probe.graph.node.append(onnx.helper.make_node('Shape', [name], [of_shape]))
        probe.graph.output.append(onnx.ValueInfoProto(name=of_shape))
    names = [*names, *shapes.values()]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # an optimiser would rename or fuse tensors that are asked for here
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options,
                                           ['CPUExecutionProvider'])
    name = session.get_inputs()[0].name
    try:
        runs = [session.run(names, {name: image}) for image in images] if names else []
    except Exception as error:  # ONNX Runtime's have no class of their own
        raise ValueError('expected a model whose trace ONNX Runtime computes for every batch, '
                         f'found: {" ".join(str(error).split())[:300]}') from error
    return {name: list(found) for name, found in zip(names, zip(*runs))}


def _with_free_entry(shapes: Sequence[np.ndarray]) -> Any:
    """A shape with -1 at the single entry that differs, or None if there is no such form."""
    if len({len(shape) for shape in shapes}) > 1:
        return None
    stacked = np.stack(shapes)
    differs = (stacked != stacked[0]).any(0)
    if differs.sum() != 1 or (stacked <= 0).any():
        return None
    return np.where(differs, -1, stacked[0]).astype(np.int64)
