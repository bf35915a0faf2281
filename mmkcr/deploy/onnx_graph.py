"""What of an ONNX graph does not depend on the image becomes a constant.

A traced graph computes shapes, indices, position embeddings and masks anew for every image, by
many small nodes. Here they are evaluated once, at some input shapes that the file is for.
"""

from typing import Any, Dict, List, Sequence, Set

import numpy as np

#: They read the shape of their input and none of its values.
_OF_SHAPES = ('Shape', 'Size')


def fold_constants(model: Any, images: Sequence[np.ndarray]) -> Any:
    """Replace what is the same for all images by constants, in place.

    Values that follow from shapes alone are computed by ONNX Runtime for every example: those that
    are the same for all become constants, once each. Of a shape to reshape to, one entry may
    differ (the batch) and becomes -1. Padding by nothing, and nodes that nothing needs any more,
    are left out.

    Args:
        model (onnx.ModelProto): With one input, the images.
        images (Sequence[np.ndarray]): Examples (B, C, H, W) of all shapes that the file is for: of
            at least two batch sizes where the batch is dynamic, and so on.

    Returns:
        onnx.ModelProto: The model.
    """
    from onnx import numpy_helper
    graph = model.graph
    values = _evaluate(model, _from_shapes(graph), images)
    constants = {name: found[0] for name, found in values.items()
                 if all(np.array_equal(found[0], other) for other in found[1:])}
    for node in graph.node:
        if node.op_type == 'Reshape' and node.input[1] in values.keys() - constants.keys():
            shape = _with_free_entry(values[node.input[1]])
            if shape is not None:
                node.input[1] = f'{node.input[1]}_{node.name}'
                constants[node.input[1]] = shape
    _bypass(graph, constants)
    kept, needed = [], {output.name for output in graph.output}
    for node in reversed(graph.node):
        outputs = set(filter(None, node.output)) & needed
        if outputs - constants.keys():
            kept.append(node)
            needed |= _inputs(node)
    computed = {name for node in kept for name in node.output}
    names = _unique({name: value for name, value in constants.items()
                     if name in needed - computed})
    weights = [weight for weight in graph.initializer if weight.name in needed]
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)
    graph.initializer.extend(numpy_helper.from_array(constants[name], name)
                             for name in dict.fromkeys(names.values()))
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    return model


def _bypass(graph: Any, constants: Dict[str, np.ndarray]) -> None:
    """Let readers of a padding by nothing read what is padded."""
    from onnx import numpy_helper
    known = {weight.name: weight for weight in graph.initializer}
    padded = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = padded.get(name, name)
        if node.op_type == 'Pad':
            name = node.input[1]
            pads = constants[name] if name in constants else \
                numpy_helper.to_array(known[name]) if name in known else np.ones(1)
            if not pads.any():
                padded[node.output[0]] = node.input[0]


def count_operators(model: Any) -> Dict[str, int]:
    """Nodes of a graph by operator.

    Args:
        model (onnx.ModelProto): The file's content.
    """
    found: Dict[str, int] = {}
    for node in model.graph.node:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def _inputs(node: Any) -> Set[str]:
    """Names that a node reads, those in its sub-graphs too."""
    names = set(filter(None, node.input))
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _inputs(inner)
    return names


def _from_shapes(graph: Any) -> List[str]:
    """Tensors that depend on the shape of the images at most."""
    pixels, found = {value.name for value in graph.input}, []
    for node in graph.node:
        if node.op_type in _OF_SHAPES or not _inputs(node) & pixels:
            found += filter(None, node.output)
        else:
            pixels.update(node.output)
    return found


def _evaluate(model: Any, names: Sequence[str],
              images: Sequence[np.ndarray]) -> Dict[str, List[np.ndarray]]:
    """Values of some tensors for every example."""
    import onnx
    import onnxruntime
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    present = {value.name for value in probe.graph.output}
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names
                              if name not in present)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(probe.SerializeToString(), options,
                                           ['CPUExecutionProvider'])
    name = session.get_inputs()[0].name
    runs = [session.run(list(names), {name: image}) for image in images] if names else []
    return {name: list(found) for name, found in zip(names, zip(*runs))}


def _with_free_entry(shapes: Sequence[np.ndarray]) -> Any:
    """A shape with -1 at the one entry that differs; None where that cannot be said."""
    if len({len(shape) for shape in shapes}) > 1:
        return None
    stacked = np.stack(shapes)
    differs = (stacked != stacked[0]).any(0)
    if differs.sum() != 1 or (stacked <= 0).any():
        return None
    return np.where(differs, -1, stacked[0]).astype(np.int64)


def _unique(constants: Dict[str, np.ndarray]) -> Dict[str, str]:
    """For every constant the first with the same value."""
    first: Dict[Any, str] = {}
    return {name: first.setdefault((value.dtype.str, value.shape, value.tobytes()), name)
            for name, value in constants.items()}
