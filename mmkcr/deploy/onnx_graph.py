"""Folding whatever in an ONNX graph does not depend on the image into constants.

A traced graph recomputes shapes, indices, position embeddings and masks for every image, in
many small nodes. Here they are evaluated once, at some input shapes that the file must support.
"""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

#: Operators that read the shape of their input and none of its values.
_OF_SHAPES = ('Shape', 'Size')


def fold_constants(model: Any, images: Sequence[np.ndarray]) -> Any:
    """Replace values that are the same for all images by constants, in place.

    ONNX Runtime computes all values that depend only on shapes, for every example. Values that
    are equal for all examples become constants, equal ones only once. In the shape of a reshape
    one entry may differ (the batch) and becomes -1. If only the batch is dynamic, all other shapes
    are computed from one node that reads it, equal ones only once. Padding by nothing, and nodes
    that are no longer needed, are removed.

    Args:
        model (onnx.ModelProto): A model with one input, the images.
        images (Sequence[np.ndarray]): Examples (B, C, H, W) of all shapes that the file must
            support: at least two batch sizes if the batch is dynamic, and so on.

    Returns:
        onnx.ModelProto: The model.
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
    of_batch = _of_batch(graph, values, constants, images)
    _bypass(graph, constants)
    # from the outputs back: a node stays if one of its outputs is needed and not known
    kept, needed, known = [], {output.name for output in graph.output}, {**constants, **of_batch}
    for node in reversed(graph.node):
        outputs = set(filter(None, node.output)) & needed
        if outputs - known.keys():
            kept.append(node)
            needed |= _inputs(node)
    needed -= {name for node in kept for name in node.output}
    shapes = _unique({name: value for name, value in of_batch.items() if name in needed})
    made = _from_batch(graph.input[0].name, {name: of_batch[name] for name in shapes.values()},
                       constants)
    kept += reversed(made)  # from the outputs back, as the others
    needed |= set().union(*map(_inputs, made))
    computed = {name for node in kept for name in node.output}
    names = _unique({name: value for name, value in constants.items()
                     if name in needed - computed})
    weights = [weight for weight in graph.initializer if weight.name in needed]
    # protobuf fields can only be emptied and refilled
    del graph.node[:], graph.initializer[:], graph.value_info[:]
    graph.node.extend(reversed(kept))
    graph.initializer.extend(weights)
    graph.initializer.extend(numpy_helper.from_array(constants[name], name)
                             for name in dict.fromkeys(names.values()))
    names.update(shapes)
    for node in graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = names.get(name, name)
    return model


def _of_batch(graph: Any, values: Dict[str, List[np.ndarray]], constants: Dict[str, np.ndarray],
              images: Sequence[np.ndarray]) -> Dict[str, np.ndarray]:
    """Shapes each of whose entries is constant or a multiple of the batch.

    Targets of expansions of constants get names of their own, and 1 where the constant has its
    full size, so that more of them are equal.

    Returns:
        dict[str, np.ndarray]: Factors of the batch and what is added to it, (2, entries) each,
        by the shape's name; empty if more than the batch is dynamic.
    """
    batches = np.array([len(image) for image in images])
    if len({image.shape[1:] for image in images}) > 1 or len(set(batches)) == 1:
        return {}
    found = {}
    for name in (name for name in values if name not in constants):
        if values[name][0].dtype == np.int64 and values[name][0].ndim == 1 and \
                len({len(value) for value in values[name]}) == 1:
            entries = np.stack(values[name])  # (examples, entries)
            fixed = (entries == entries[0]).all(0)
            factors = np.where(fixed, 0, entries[0] // batches[0])
            # an entry that varies in another way stays as it is
            if (np.where(fixed, entries, factors * batches[:, None]) == entries).all():
                found[name] = np.stack([factors, np.where(fixed, entries[0], 0)])
    weights = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    weights.update((name, value.shape) for name, value in constants.items())
    for node in graph.node:
        if node.op_type == 'Expand' and node.input[1] in found and node.input[0] in weights:
            target, own = found[node.input[1]].copy(), weights[node.input[0]]
            if 0 < len(own) <= target.shape[1]:
                target[1, -len(own):][target[1, -len(own):] == own] = 1
            node.input[1] = f'{node.output[0]}_shape'
            found[node.input[1]] = target
    return found


def _from_batch(images: str, shapes: Dict[str, np.ndarray],
                constants: Dict[str, np.ndarray]) -> List[Any]:
    """Nodes that compute shapes of :func:`_of_batch`; their constants are added to the others."""
    from onnx import helper
    if not shapes:
        return []
    constants['batch_axis'] = np.array([0])
    nodes = [helper.make_node('Shape', [images], ['images_shape']),
             helper.make_node('Gather', ['images_shape', 'batch_axis'], ['images_batch'])]
    for name, (factors, added) in shapes.items():
        constants[f'{name}_factors'], constants[f'{name}_added'] = factors, added
        nodes += [helper.make_node('Mul', ['images_batch', f'{name}_factors'], [f'{name}_scaled']),
                  helper.make_node('Add', [f'{name}_scaled', f'{name}_added'], [name])]
    return nodes


def _bypass(graph: Any, constants: Dict[str, np.ndarray]) -> None:
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


def split_projections(model: Any) -> int:
    """Split each fused projection to queries, keys and values into three, in place.

    Hosts compute the three in one product and then separate and transpose its outputs. Runtimes
    copy every part once more for that; with three products they do not.

    Args:
        model (onnx.ModelProto): With folded constants, see :func:`fold_constants`.

    Returns:
        int: Number of projections that were split.
    """
    _split_slices(model)
    graph = _Graph(model.graph)
    found = [part for node in model.graph.node
             if (part := _Projection.of(node, graph)) is not None]
    for projection in found:
        projection.split(graph)
    graph.replace({name for projection in found for name in projection.replaced})
    return len(found)


def _split_slices(model: Any) -> None:
    """Give every slice of a product's last axis a product of its own, if slices alone read it."""
    graph, gone = _Graph(model.graph), set()
    for node in model.graph.node:
        product = _Product.of(node.output[0], graph)
        slices = graph.readers.get(node.output[0], [])
        bounds = [graph.last_axis(reader) for reader in slices]
        if product is None or not slices or None in bounds:
            continue
        for reader, own in zip(slices, bounds):
            graph.before[reader.output[0]] = product.part(own, reader.output[0], graph)
        gone |= {*product.names, *(reader.output[0] for reader in slices)}
    graph.replace(gone)


def narrow_indices(model: Any) -> None:
    """Store the indices of element-wise gathers as int32, half as many bytes to read; in place.

    Args:
        model (onnx.ModelProto): With folded constants, see :func:`fold_constants`.
    """
    graph = _Graph(model.graph)
    for node in model.graph.node:
        if node.op_type != 'GatherElements':
            continue
        made = graph.maker.get(node.input[1])
        # an index broadcast to the batch, which nothing but such gathers reads
        wide = made is not None and made.op_type == 'Expand'
        if wide and not all(reader.op_type == 'GatherElements' and reader.input[0] != node.input[1]
                            for reader in graph.readers[node.input[1]]):
            continue
        reader, place = (made, 0) if wide else (node, 1)
        value = graph.value(reader.input[place])
        if value is not None and value.dtype == np.int64:
            reader.input[place] = graph.add_constant(f'{reader.output[0]}_index',
                                                     value.astype(np.int32))
    _drop_unused(model.graph)


def _drop_unused(graph: Any) -> None:
    """Remove constants that no node reads."""
    used = {name for node in graph.node for name in _inputs(node)}
    used |= {output.name for output in graph.output}
    weights = [weight for weight in graph.initializer if weight.name in used]
    del graph.initializer[:]
    graph.initializer.extend(weights)


class _Graph:
    """Producers and consumers of tensors, and constants.

    Args:
        graph (onnx.GraphProto): The graph.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.maker = {name: node for node in graph.node for name in node.output}
        self.readers: Dict[str, List[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.weights = {weight.name: weight for weight in graph.initializer}
        self.outputs = {output.name for output in graph.output}
        self.before: Dict[str, List[Any]] = {}  # new nodes, by an output of the node after them

    def value(self, name: str) -> Any:
        """The value of a constant, or None."""
        from onnx import numpy_helper
        return numpy_helper.to_array(self.weights[name]) if name in self.weights else None

    def add_constant(self, name: str, value: np.ndarray) -> str:
        """Store a constant and return its name."""
        from onnx import numpy_helper
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def last_axis(self, node: Any) -> Optional[slice]:
        """The constant range that a slice takes of its input's last axis, or None."""
        if node.op_type != 'Slice' or len(node.input) < 4:
            return None
        starts, ends, axes, *steps = (self.value(name) for name in node.input[1:])
        # a positive axis may be another one: the rank is unknown
        if starts is None or ends is None or axes is None or axes.tolist() != [-1] or \
                steps and (steps[0] is None or steps[0].tolist() != [1]):
            return None
        return slice(int(starts[0]), int(ends[0]))

    def replace(self, gone: Set[str]) -> None:
        """Remove the nodes that make some tensors, and put new ones where :attr:`before` says."""
        nodes = []
        # new nodes take the place of the last one that they replace: their inputs exist by then
        for node in self.graph.node:
            nodes += self.before.get(node.output[0], ())
            nodes += [] if node.output[0] in gone else [node]
        kept = [node.SerializeToString() for node in nodes]
        del self.graph.node[:]
        for content in kept:
            self.graph.node.add().ParseFromString(content)
        _drop_unused(self.graph)


def _attribute(node: Any, name: str) -> Any:
    from onnx import helper
    return next((helper.get_attribute_value(entry) for entry in node.attribute
                 if entry.name == name), None)


class _Product(NamedTuple):
    """MatMul with a constant matrix, and Add of a constant bias behind it, if there is one.

    Args:
        x (str): Name of the tensor that is multiplied.
        weight (np.ndarray): (C, K).
        bias (np.ndarray, optional): (K).
        names (list[str]): Tensors that the nodes make.
    """

    x: str
    weight: np.ndarray
    bias: Optional[np.ndarray]
    names: List[str]

    @classmethod
    def of(cls, name: str, graph: _Graph) -> Optional['_Product']:
        """The product that makes a tensor and is read for nothing else, or None."""
        made, bias, names = graph.maker.get(name), None, [name]
        if made is not None and made.op_type == 'Add':
            values = [graph.value(entry) for entry in made.input]
            # exactly one side of the sum is a constant, the bias
            if (values[0] is None) == (values[1] is None):
                return None
            bias = values[0] if values[1] is None else values[1]
            names.append(made.input[values[0] is not None])
            made = graph.maker.get(names[-1])
            if len(graph.readers[names[-1]]) != 1 or names[-1] in graph.outputs:
                return None
        if made is None or made.op_type != 'MatMul' or name in graph.outputs:
            return None
        weight = graph.value(made.input[1])
        if weight is None or weight.ndim != 2 or bias is not None and bias.ndim != 1:
            return None
        return cls(made.input[0], weight, bias, names)

    def part(self, own: slice, name: str, graph: _Graph) -> List[Any]:
        """Nodes that compute some of the columns under a new name."""
        from onnx import helper
        weight = graph.add_constant(f'{name}_weight', self.weight[:, own])
        if self.bias is None:
            return [helper.make_node('MatMul', [self.x, weight], [name])]
        bias = graph.add_constant(f'{name}_bias', self.bias[own])
        return [helper.make_node('MatMul', [self.x, weight], [f'{name}_product']),
                helper.make_node('Add', [f'{name}_product', bias], [name])]


class _Projection(NamedTuple):
    """A product, Reshape to (B, N, 3, H, d), Transpose to (3, B, H, N, d), and its three parts.

    Args:
        product (_Product): With a weight (C, 3 H d).
        shape (np.ndarray): (B, N, 3, H, d), B possibly -1.
        parts (tuple[str, str, str]): Names of queries, keys and values.
        transposed (str): Name of what the transposition makes.
        replaced (list[str]): Tensors whose nodes are replaced.
    """

    product: _Product
    shape: np.ndarray
    parts: Tuple[str, ...]
    transposed: str
    replaced: List[str]

    @classmethod
    def of(cls, node: Any, graph: _Graph) -> Optional['_Projection']:
        """The projection that ends in this transposition, or None."""
        if node.op_type != 'Transpose' or _attribute(node, 'perm') != [2, 0, 3, 1, 4]:
            return None
        parts, ends = cls._parts(node.output[0], graph)
        # walk up: Transpose <- Reshape <- product, each read by nobody else
        reshape = graph.maker.get(node.input[0])
        if parts is None or reshape is None or reshape.op_type != 'Reshape' or \
                any(len(graph.readers[name]) != 1 for name in (node.input[0], reshape.input[0])):
            return None
        shape, product = graph.value(reshape.input[1]), _Product.of(reshape.input[0], graph)
        if product is None or shape is None or (shape[2:] < 1).any() or shape[2] != 3:
            return None
        return cls(product, shape, parts, node.output[0],
                   [node.output[0], node.input[0], *product.names,
                    *(end.output[0] for end in ends)])

    @staticmethod
    def _parts(name: str, graph: _Graph) -> Tuple[Optional[Tuple[str, ...]], List[Any]]:
        """Names of the three parts, and the nodes that produce them."""
        readers = graph.readers.get(name, [])
        # either Split and three Squeeze (unbind), or three Gather of one index each
        if len(readers) == 1 and readers[0].op_type == 'Split' and \
                _attribute(readers[0], 'axis') in (None, 0):
            ends = [graph.readers.get(part, []) for part in readers[0].output]
            if [[node.op_type for node in nodes] for nodes in ends] == [['Squeeze']] * 3:
                nodes = [end for end, in ends]
                return tuple(node.output[0] for node in nodes), [readers[0], *nodes]
        found = {}
        for node in readers:
            index = graph.value(node.input[1]) if node.op_type == 'Gather' else None
            # a scalar index drops the axis, as the squeeze does
            if index is None or index.ndim or _attribute(node, 'axis') != 0:
                return None, []
            found[int(index)] = node
        if sorted(found) != [0, 1, 2] or len(readers) != 3:
            return None, []
        return tuple(found[i].output[0] for i in range(3)), readers

    def split(self, graph: _Graph) -> None:
        """Add the three products to the graph."""
        from onnx import helper
        width, made = self.product.weight.shape[1] // 3, []
        for i, name in enumerate(self.parts):
            shape = graph.add_constant(f'{name}_shape', np.delete(self.shape, 2))  # (B, N, H, d)
            made += [*self.product.part(slice(i * width, (i + 1) * width), f'{name}_sum', graph),
                     helper.make_node('Reshape', [f'{name}_sum', shape], [f'{name}_heads']),
                     helper.make_node('Transpose', [f'{name}_heads'], [name], perm=[0, 2, 1, 3])]
        graph.before[self.transposed] = made


def count_operators(model: Any) -> Dict[str, int]:
    """Number of nodes of a graph by operator.

    Args:
        model (onnx.ModelProto): The file's content.
    """
    found: Dict[str, int] = {}
    for node in model.graph.node:
        found[node.op_type] = found.get(node.op_type, 0) + 1
    return found


def _inputs(node: Any) -> Set[str]:
    """Names that a node reads, including those in its sub-graphs."""
    names = set(filter(None, node.input))
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _inputs(inner)
    return names


def _from_shapes(graph: Any) -> List[str]:
    """Tensors that depend at most on the shape of the images."""
    pixels, found = {value.name for value in graph.input}, []
    for node in graph.node:
        if node.op_type in _OF_SHAPES or not _inputs(node) & pixels:
            found += filter(None, node.output)
        else:
            pixels.update(node.output)
    return found


def _evaluate(model: Any, names: Sequence[str], shapes: Dict[str, str],
              images: Sequence[np.ndarray]) -> Dict[str, List[np.ndarray]]:
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
    runs = [session.run(names, {name: image}) for image in images] if names else []
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


def _unique(constants: Dict[str, np.ndarray]) -> Dict[str, str]:
    """Map every constant to the first one with the same value."""
    first: Dict[Any, str] = {}
    return {name: first.setdefault((value.dtype.str, value.shape, value.tobytes()), name)
            for name, value in constants.items()}
