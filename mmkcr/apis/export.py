"""Subnets, and dense models, as ONNX files that are checked against PyTorch."""

import contextlib
import importlib.util
import itertools
import logging
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, List, Sequence, Tuple, Union

import torch
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmpretrain.models.utils import ShiftWindowMSA
from torch import Tensor, nn

from mmkcr.core import atomic_write, searchable_layers
from .positions import bake_positions
from .tensor_model import TensorModel
from .traceable import traceable

_NEEDED = ('onnx', 'onnxruntime')
_OPSET = 17  # the first with LayerNormalization
Shape = Tuple[int, int, int, int]


@dataclass
class ExportReport:
    """What was written and how far it is from PyTorch.

    Args:
        path (Path): The ONNX file.
        dynamic_size (bool): Whether height and width are dynamic; the batch
            always is.
        errors (dict): Largest difference, relative to the largest output
            (at least 1), by input shape.
        notice (str): Why height and width are fixed although they were asked
            to be dynamic, or ''.
    """

    path: Path
    dynamic_size: bool
    errors: dict
    notice: str = ''


class ExportMismatch(ValueError):
    """The file's outputs are not those of the model."""


def export_onnx(model: nn.Module,
                path: Union[str, Path],
                input_shape: Sequence[int] = (3, 224, 224),
                dynamic_size: bool = True,
                batch_sizes: Sequence[int] = (1, 2, 5),
                tolerance: float = 1e-4,
                bake: bool = False) -> ExportReport:
    """Export a model to ONNX and compare it in ONNX Runtime.

    A classifier gives logits, a backbone feature maps, see
    :class:`~mmkcr.apis.tensor_model.TensorModel`. The file is written to a temporary
    folder and compared; only one that agrees is put at ``path``, by a rename.

    Args:
        model (nn.Module): A backbone or task model, on the CPU.
        path (str | Path): Where to write; what is there is replaced.
        input_shape (Sequence[int]): (C, H, W). Defaults to (3, 224, 224).
        dynamic_size (bool): Make height and width dynamic, beside the batch.
            A backbone that decides by the size of its feature maps (Swin
            without ``pad_small_map``) is exported for ``input_shape``, and the
            report says so. Defaults to True.
        batch_sizes (Sequence[int]): Compared at each. Defaults to (1, 2, 5).
        tolerance (float): Largest difference that passes. Defaults to 1e-4.
        bake (bool): Store a ViT's position embedding as it is at
            ``input_shape``, which fixes height and width; else the graph
            resizes it. Defaults to False.

    Returns:
        ExportReport: The file and its errors.

    Raises:
        ExportMismatch: The outputs differ; nothing is written.
        ImportError: A package is missing.
        ValueError: A shape or batch size that is not positive, a supernet, or
            a model that the exporter cannot trace.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(f'expected {", ".join(f"`{n}`" for n in _NEEDED)} to export, found no '
                          f'{missing[0]}: pip install -r requirements/optional.txt')
    if len(input_shape) != 3 or min(*input_shape, *batch_sizes) < 1:
        raise ValueError('expected a shape (C, H, W) and batch sizes of positive numbers, found '
                         f'{tuple(input_shape)} and {tuple(batch_sizes)}')
    if bake:
        model, dynamic_size = bake_positions(model, input_shape), False
    model, shape, notice = TensorModel(model), tuple(input_shape), ''
    if searchable_layers(model):
        raise ValueError('expected a dense model or a subnet to export, found a supernet with '
                         f'{len(searchable_layers(model))} gates: slim it first (tools/slim.py)')
    if dynamic_size:
        try:
            return _export(model, Path(path), _general(model, shape), True,
                           _shapes(shape, batch_sizes, True), tolerance)
        except Exception as error:  # the exporter's own kinds are many
            notice = ('height and width are fixed, because the model decides by the size of '
                      f'its feature maps ({_first_line(error)})')
    report = _export(model, Path(path), shape, False, _shapes(shape, batch_sizes, False),
                     tolerance)
    report.notice = notice
    return report


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()),
                type(error).__name__)[:200]


def _general(model: nn.Module, shape: Sequence[int]) -> Tuple[int, int, int]:
    """A size at which every map of the model is padded; odd, and larger than its own.

    The hosts leave padding out where it would do nothing, and so would a trace.
    In the graph it has no effect on maps that need none.
    """
    strides = [max(m.stride) for m in model.modules()
               if isinstance(m, AdaptivePadding) and max(m.stride) > 1]
    windows = {m.window_size for m in model.modules() if isinstance(m, ShiftWindowMSA)}

    def padded(side: int) -> bool:
        for stride in strides:
            if side % stride == 0:
                return False
            side = -(-side // stride)
            if any(side % window == 0 for window in windows):
                return False
        return True

    height, width = shape[1] * 5 // 4 | 1, shape[2] * 3 // 2 | 1
    return shape[0], *(next(filter(padded, itertools.count(side))) for side in (height, width))


def _shapes(shape: Sequence[int], batch_sizes: Sequence[int], dynamic: bool) -> List[Shape]:
    shapes = [(batch, *shape) for batch in batch_sizes]
    if dynamic:
        channels, height, width = shape
        shapes += [(1, channels, height * 3 // 2, width), (2, channels, height + 3, width + 13)]
    return shapes


def _export(model: TensorModel, path: Path, traced: Sequence[int], dynamic: bool,
            shapes: Sequence[Shape], tolerance: float) -> ExportReport:
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder) / path.name
        _write(model, temporary, traced, dynamic)
        errors = compare_onnx(model, temporary, shapes)
        worst = max(errors, key=errors.get)
        if not errors[worst] <= tolerance:
            raise ExportMismatch(
                f'expected outputs within {tolerance:g} of PyTorch in ONNX Runtime, found '
                f'{errors[worst]:.3g} at input {"x".join(map(str, worst))}')
        with atomic_write(path) as target:
            shutil.copyfile(temporary, target)
    return ExportReport(path, dynamic, errors)


def _write(model: TensorModel, path: Path, shape: Sequence[int], dynamic: bool) -> None:
    names = {0: 'batch', 2: 'height', 3: 'width'} if dynamic else {0: 'batch'}
    images = torch.zeros(2, *shape)
    with torch.no_grad(), _quiet(), traceable():
        outputs = model(images)
        count = 1 if isinstance(outputs, Tensor) else len(outputs)
        outputs = ['output'] if count == 1 else [f'output{i}' for i in range(count)]
        try:
            torch.onnx.export(
                model, (images, ), str(path), dynamo=False, opset_version=_OPSET,
                input_names=['images'], output_names=outputs,
                dynamic_axes=dict(images=names, **{name: {0: 'batch'} for name in outputs}))
        except torch.onnx.errors.OnnxExporterError as error:
            raise ValueError('expected a model of operators that ONNX has, found '
                             f'`{type(model.model).__name__}`: {_first_line(error)}') from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(before)


def compare_onnx(model: nn.Module, path: Union[str, Path], shapes: Sequence[Shape],
                 seed: int = 0) -> dict:
    """Run a file in ONNX Runtime and compare with PyTorch on random images.

    Args:
        model (nn.Module): From images to a tensor or a tuple of tensors.
        path (str | Path): The ONNX file.
        shapes (Sequence[tuple[int]]): Input shapes (B, C, H, W).
        seed (int): Of the images. Defaults to 0.

    Returns:
        dict[tuple[int], float]: Largest difference by shape, relative to the
        largest output (at least 1); infinite where ONNX Runtime fails or gives
        other shapes.
    """
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, ['CPUExecutionProvider'])
    generator = torch.Generator().manual_seed(seed)
    return {shape: _difference(model, session, torch.randn(shape, generator=generator))
            for shape in map(tuple, shapes)}


def _difference(model: nn.Module, session: Any, images: Tensor) -> float:
    with torch.no_grad():
        expected = model(images)
    expected = [expected] if isinstance(expected, Tensor) else list(expected)
    try:
        found = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    except Exception:  # onnxruntime's errors have no common base but this
        return float('inf')
    if [tuple(a.shape) for a in expected] != [b.shape for b in found]:
        return float('inf')
    errors = [float((a - torch.from_numpy(b)).abs().max()) / max(1., float(a.abs().max()))
              for a, b in zip(expected, found)]
    return max(error if error == error else float('inf') for error in errors)
