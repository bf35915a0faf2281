"""Static quantisation of ONNX files by the runtimes' own libraries, and four files side by side."""

import bisect
import contextlib
import importlib.util
import io
import itertools
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from mmkcr.core import atomic_write, eval_mode
from mmkcr.models.tasks import deciding_scores, find_task, is_segmentor
from .export import export_onnx
from .latency import measure_pair
from .runtimes import module_path, open_onnx, quiet, require_runtime
from .tensor_model import TensorModel

#: Quantisation library of each runtime.
QUANTIZERS: dict[str, str] = dict(onnxruntime='onnxruntime', openvino='nncf')
#: Operators that hold the MACs.
PRODUCTS = ('MatMul', 'Gemm', 'Conv')


def quantize_onnx(source: str | Path, target: str | Path,
                  images: Sequence[np.ndarray], runtime: str = 'onnxruntime',
                  skip: Sequence[str] = ()) -> None:
    """Write the int8 form of an ONNX file.

    Ranges are chosen from the images, by ONNX Runtime's own quantiser or, for OpenVINO, by NNCF.
    Weights get one scale per output channel. Any runtime reads the file, with its quantise and
    dequantise nodes, but only the intended one runs it fast.

    Args:
        source (str | Path): The fp32 file.
        target (str | Path): The new file; an existing one is replaced.
        images (Sequence[np.ndarray]): Calibration batches (B, C, H, W), normalised.
        runtime (str): One of :data:`QUANTIZERS`. Defaults to ``'onnxruntime'``.
        skip (Sequence[str]): Nodes that stay in fp32, see :func:`sensitive_nodes`. Defaults to
            none.

    Raises:
        ImportError: The runtime or its quantiser is not installed.
        ValueError: No images, or another runtime.
    """
    require_quantizer(runtime)
    if not len(images):
        raise ValueError('expected at least one batch of calibration images, found none')
    quantize = _by_nncf if runtime == 'openvino' else _by_onnxruntime
    with quiet(), atomic_write(target) as path:
        quantize(Path(source), path, images, skip)


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


def _by_nncf(source: Path, target: Path, images: Sequence[np.ndarray],
             skip: Sequence[str]) -> None:
    import nncf
    import onnx
    model = onnx.load(source)
    name = model.graph.input[0].name
    # one image at a time: the batch was traced as a free dimension
    singles = [image[None] for batch in images for image in batch]
    with contextlib.redirect_stdout(io.StringIO()):  # bars of its own
        quantized = nncf.quantize(model, nncf.Dataset(singles, lambda image: {name: image}),
                                  subset_size=len(singles), model_type=nncf.ModelType.TRANSFORMER,
                                  ignored_scope=nncf.IgnoredScope(list(skip), validate=False))
    onnx.save(quantized, target)


def _by_onnxruntime(source: Path, target: Path, images: Sequence[np.ndarray],
                    skip: Sequence[str]) -> None:
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    quant_pre_process(str(source), str(target), skip_symbolic_shape=True)
    name = onnx.load(target, load_external_data=False).graph.input[0].name
    feeds = ({name: batch} for batch in images)
    reader = SimpleNamespace(get_next=lambda: next(feeds, None))  # all that is asked of a reader
    quantize_static(str(target), str(target), reader,
                    quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                    op_types_to_quantize=list(PRODUCTS), nodes_to_exclude=list(skip),
                    extra_options=dict(ActivationSymmetric=False, WeightSymmetric=True))


def sensitive_nodes(quantized: Path, judge: Callable[[Path], tuple[float, float]],
                    enough: float) -> dict[str, list[str]]:
    """Blocks that lose most in int8, with their nodes: as few as must stay in fp32.

    Each block in turn gets its inputs without their rounding; the blocks whose rounding loses most
    come first. The int8 file stays as it is.

    Args:
        quantized (Path): The int8 file.
        judge (Callable): Gives the error of a file, and its quality.
        enough (float): Quality to reach.

    Returns:
        dict[str, list[str]]: Nodes by block. Empty if half of all blocks are not enough.
    """
    import onnx
    model = onnx.load(quantized)
    makers = {node.output[0]: node for node in model.graph.node}
    blocks: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        if node.op_type in PRODUCTS:
            path = module_path(node.name)
            block = re.match(r'(?:[a-zA-Z]\w*\.)*?\w+\.\d+(?:\.\w+\.\d+)*', path)
            blocks.setdefault(block[0] if block else path, []).append(node)

    def judge_without(names: Sequence[str]) -> tuple[float, float]:
        changed, unrounded = onnx.ModelProto(), {}
        for node in itertools.chain.from_iterable(blocks[name] for name in names):
            for value in node.input:
                rounded = makers.get(value)
                source = rounded and makers.get(rounded.input[0])
                # constants have no quantise node: weights stay rounded
                if source and source.op_type == 'QuantizeLinear':
                    unrounded[node.name, value] = source.input[0]
        changed.CopyFrom(model)
        for node in changed.graph.node:
            node.input[:] = [unrounded.get((node.name, value), value) for value in node.input]
        with tempfile.TemporaryDirectory() as folder:
            onnx.save(changed, path := Path(folder) / 'changed.onnx')
            return judge(path)

    def reaches(count: int) -> bool:
        return judge_without(order[:count])[1] >= enough

    order, most = sorted(blocks, key=lambda name: judge_without([name])[0]), len(blocks) // 2
    if not most or not reaches(most):
        return {}
    fewest = 1 + bisect.bisect_left(range(1, most), True, key=reaches)
    return {name: [node.name for node in blocks[name]] for name in order[:fewest]}


class DeployedFile(NamedTuple):
    """One file, compared with the dense network's outputs in PyTorch on held-out images."""

    name: str  # 'dense', 'slim', 'dense int8' or 'slim int8'
    path: Path
    bytes: int
    ratio: float  # its time over that of the dense fp32 file
    error: float  # difference of the outputs, relative to their norm
    same: float | None  # share of images with the same class; None if it is no classifier
    pixels: float | None = None  # share of pixels with the same class; None if it is no segmentor


def deploy_int8(dense: nn.Module, slim: nn.Module, images: Sequence[np.ndarray],
                held_out: Sequence[np.ndarray], folder: Path, runtime: str = 'onnxruntime',
                repeats: int = 15) -> list[DeployedFile]:
    """Export both networks for a runtime, quantise both, and measure the four files.

    Args:
        dense, slim (nn.Module): Task models or backbones.
        images (Sequence[np.ndarray]): Calibration batches (B, C, H, W), normalised.
        held_out (Sequence[np.ndarray]): Batches that outputs are compared on.
        folder, runtime: Where the files are written; for one of :data:`QUANTIZERS`.
        repeats (int): Pairs that are timed, at batch 1 on one thread.
    """
    files = {name: export_onnx(model, folder / f'{name}_{runtime}.onnx', images[0].shape[1:], False,
                               (1, 2), runtime=runtime).path
             for name, model in (('dense', dense), ('slim', slim))}
    for name, path in list(files.items()):
        files[f'{name} int8'] = path.with_stem(f'{path.stem}_int8')
        quantize_onnx(path, files[f'{name} int8'], images, runtime)
    with eval_mode(dense), torch.no_grad():
        view = TensorModel(dense)
        expected = np.concatenate([_last(dense, view(torch.from_numpy(batch)))
                                   for batch in held_out])
    rows = []
    for name, path in files.items():
        # every file in turns with the dense fp32 file, itself included
        image = torch.from_numpy(images[0][:1])
        timing = measure_pair(files['dense'], path, image, repeats, 3, runtime, 1)
        session = open_onnx(path, runtime)
        outputs = np.concatenate([_last(dense, session(batch)) for batch in held_out])
        error = np.linalg.norm(outputs - expected) / max(np.linalg.norm(expected), 1e-12)
        scores = expected.ndim == 2 or is_segmentor(dense)
        same = float((outputs.argmax(1) == expected.argmax(1)).mean()) if scores else None
        shares = (same, None) if expected.ndim == 2 else (None, same)
        rows.append(DeployedFile(name, path, path.stat().st_size, timing.ratio, float(error),
                                 *shares))
    return rows


def _last(model: nn.Module, outputs: Any) -> np.ndarray:
    """Logits, or the deepest map."""
    outputs = deciding_scores(find_task(model), outputs)
    # copied: the runtimes reuse the memory of their outputs in the next call
    return np.array(outputs[-1] if isinstance(outputs, (list, tuple)) else outputs)
