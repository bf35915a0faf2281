"""Static quantisation of ONNX files by the runtimes' own libraries, and blocks left in fp32."""

import bisect
import contextlib
import importlib.util
import io
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from mmkcr.core import atomic_write
from mmkcr.core.machine import has_int8
from .runtimes import module_path, quiet, require_runtime

#: Quantisation library of each runtime.
QUANTIZERS: dict[str, str] = dict(onnxruntime='onnxruntime', openvino='nncf')
#: Operators that hold the MACs.
PRODUCTS = ('MatMul', 'Gemm', 'Conv')


def quantize_onnx(source: str | Path, target: str | Path,
                  images: Sequence[np.ndarray], runtime: str = 'onnxruntime') -> None:
    """Write the int8 form of an ONNX file.

    Ranges are chosen from the images, by ONNX Runtime's own quantiser or, for OpenVINO, by NNCF.
    Weights get one scale per output channel; ONNX Runtime computes products of two activations, as
    of attention, in fp32. Where this processor has no instructions for int8, ONNX Runtime's weights
    get 7 bits, as its sums would saturate. Any runtime reads the file, with its quantise and
    dequantise nodes, but only the intended one runs it fast.

    Args:
        source (str | Path): The fp32 file.
        target (str | Path): The new file; an existing one is replaced.
        images (Sequence[np.ndarray]): Calibration batches (B, C, H, W), normalised.
        runtime (str): One of :data:`QUANTIZERS`. Defaults to ``'onnxruntime'``.

    Raises:
        ImportError: The runtime or its quantiser is not installed.
        ValueError: No images, or another runtime.
    """
    require_quantizer(runtime)
    if not len(images):
        raise ValueError('expected at least one batch of calibration images, found none')
    quantize = _by_nncf if runtime == 'openvino' else _by_onnxruntime
    with quiet(), atomic_write(target) as path:
        quantize(Path(source), path, images)


def find_quantizers() -> list[str]:
    """The runtimes of :data:`QUANTIZERS` that are installed with their quantisers."""
    return [runtime for runtime, package in QUANTIZERS.items()
            if importlib.util.find_spec(runtime) and importlib.util.find_spec(package)]


def require_quantizer(runtime: str) -> None:
    """Refuse a runtime outside :data:`QUANTIZERS`, or without its quantiser.

    Raises:
        ImportError: The quantiser is not installed; the message says how to install it.
        ValueError: Another runtime.
    """
    if runtime not in QUANTIZERS:
        raise ValueError(f'expected a runtime that int8 files are made for, of '
                         f'{sorted(QUANTIZERS)}, found {runtime!r}')
    require_runtime(runtime)
    if importlib.util.find_spec(QUANTIZERS[runtime]) is None:
        raise ImportError(f'expected the quantiser of `{runtime}`, found that it is not installed: '
                          f'pip install {QUANTIZERS[runtime]}')


def _by_nncf(source: Path, target: Path, images: Sequence[np.ndarray]) -> None:
    import nncf
    import onnx
    model = onnx.load(source)
    name = model.graph.input[0].name
    # one image at a time: the batch was traced as a free dimension
    singles = [image[None] for batch in images for image in batch]
    with contextlib.redirect_stdout(io.StringIO()):  # bars of its own
        quantized = nncf.quantize(model, nncf.Dataset(singles, lambda image: {name: image}),
                                  subset_size=len(singles), model_type=nncf.ModelType.TRANSFORMER)
    onnx.save(quantized, target)


def _by_onnxruntime(source: Path, target: Path, images: Sequence[np.ndarray]) -> None:
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    quant_pre_process(str(source), str(target), skip_symbolic_shape=True)
    graph = onnx.load(target, load_external_data=False).graph
    # stay in fp32: a token's attention to each of a thousand others is less than a step of 8 bits,
    # and would be 0
    weights = {constant.name for constant in graph.initializer}
    of_activations = [node.name for node in graph.node
                      if node.op_type == 'MatMul' and not weights.intersection(node.input)]
    name = graph.input[0].name
    feeds = ({name: batch} for batch in images)
    reader = SimpleNamespace(get_next=lambda: next(feeds, None))  # all that is asked of a reader
    quantize_static(str(target), str(target), reader,
                    quant_format=QuantFormat.QDQ, per_channel=True,
                    # sums of two products of 8 bits saturate where no instruction is for them
                    reduce_range=not has_int8(),
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                    op_types_to_quantize=list(PRODUCTS), nodes_to_exclude=of_activations,
                    extra_options=dict(ActivationSymmetric=False, WeightSymmetric=True))


def choose_fp32_blocks(quantized: Path, judge: Callable[[Path], tuple[float, float]],
                       enough: float) -> list[str]:
    """Blocks that lose most in int8: as few as must compute in fp32.

    Each block in turn computes in fp32, see :func:`compute_in_fp32`; the blocks whose rounding
    loses most come first. The int8 file stays as it is.

    Args:
        quantized (Path): The int8 file.
        judge (Callable): Gives the error of a file, and its quality.
        enough (float): Quality to reach.

    Returns:
        list[str]: Names of blocks: ``'blocks.3'``. Empty if half of all blocks are not
        enough.
    """
    import onnx

    def judge_with(blocks: Sequence[str]) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            compute_in_fp32(quantized, changed := Path(folder) / 'changed.onnx', blocks)
            return judge(changed)

    def reaches(count: int) -> bool:
        return judge_with(order[:count])[1] >= enough

    names = dict.fromkeys(_block_of(node) for node in onnx.load(quantized).graph.node
                          if node.op_type in PRODUCTS)
    order, most = sorted(names, key=lambda name: judge_with([name])[0]), len(names) // 2
    if not most or not reaches(most):
        return []
    return order[:1 + bisect.bisect_left(range(1, most), True, key=reaches)]


def compute_in_fp32(quantized: str | Path, target: str | Path, blocks: Sequence[str]) -> None:
    """Write an int8 file some of whose blocks compute in fp32.

    Their products read and give numbers that are not rounded, by weights that int8 rounded.

    Args:
        quantized (str | Path): The int8 file.
        target (str | Path): The new file; an existing one is replaced.
        blocks (Sequence[str]): Names of :func:`choose_fp32_blocks`, also of a file whose network
            is inside another.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator
    model = onnx.load(quantized)
    makers = {output: node for node in model.graph.node for output in node.output}
    constants = {constant.name: constant for constant in model.graph.initializer}
    ends = tuple(f'.{block}' for block in blocks)
    chosen = {id(node) for node in model.graph.node
              if node.op_type in PRODUCTS and f'.{_block_of(node)}'.endswith(ends)}
    exact = {}
    for node in model.graph.node:
        for place, value in enumerate(node.input):
            source = makers.get(value)
            if source is None or source.op_type != 'DequantizeLinear':
                continue
            rounding = makers.get(source.input[0])
            if rounding is not None:
                given = id(makers.get(rounding.input[0])) in chosen
                if id(node) in chosen or given and node.op_type not in PRODUCTS:
                    node.input[place] = rounding.input[0]
            elif id(node) in chosen:  # a runtime would dequantise weights in every run
                known = {name: onnx.numpy_helper.to_array(constants[name])
                         for name in source.input}
                weights, = ReferenceEvaluator(source).run(None, known)
                node.input[place] = f'{value}_fp32'
                exact[node.input[place]] = weights
    model.graph.initializer.extend(onnx.numpy_helper.from_array(weights, name)
                                   for name, weights in exact.items())
    _prune(model.graph)
    with atomic_write(target) as path:
        onnx.save(model, path)


def _prune(graph: Any) -> None:
    """Remove nodes and constants that no output reads: runtimes do not fuse nodes before them."""
    used, needed = {output.name for output in graph.output}, []
    for node in reversed(graph.node):  # makers come before readers
        if used.intersection(node.output):
            needed.insert(0, node)
            used.update(node.input)
    constants = [constant for constant in graph.initializer if constant.name in used]
    for items, left in ((graph.node, needed), (graph.initializer, constants)):
        del items[:]
        items.extend(left)


def _block_of(node: Any) -> str:
    """Name of the block that a node of a graph belongs to: ``'blocks.3'``."""
    path = module_path(node.name)
    block = re.match(r'(?:[a-zA-Z]\w*\.)*?\w+\.\d+(?:\.\w+\.\d+)*', path)
    return block[0] if block else path
