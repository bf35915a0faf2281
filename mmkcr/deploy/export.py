"""Export of subnets and dense models to ONNX files that are checked against PyTorch."""

import io
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmkcr.core import atomic_write, count_params, eval_mode
from mmkcr.core.forward import flat_tensors
from mmkcr.core.macs import without_fast_path
from mmkcr.core.sites import holders
from mmkcr.deploy.prepare import prepare
from mmkcr.deploy.runtimes import open_onnx, quiet, require_runtime
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.lazy import is_of
from mmkcr.models.tasks import unwrap

OPSET = 17  # the first with LayerNormalization
_META = 'mmkcr'
#: The operator that the exporter does not know, in its error.
_OPERATOR = re.compile(r"operator '?(?:\w+::)?(\w+)")
Shape = tuple[int, int, int, int]


class ExportReport(NamedTuple):
    """The written file and its distance from PyTorch."""

    path: Path
    runtime: str  # where it was compared
    dynamic_size: bool  # whether height and width are dynamic; the batch always is
    errors: dict[Shape, float]  # by input shape, relative to the largest output (at least 1)
    notice: str  # why height and width are fixed although dynamic ones were requested, or ''


class ExportMismatch(ValueError):
    """A file has other outputs than its model."""


def export_onnx(model: nn.Module, path: str | Path, input_shape: Sequence[int] = (3, 224, 224),
                dynamic_size: bool | None = None, batch_sizes: Sequence[int] = (1, 2, 5),
                tolerance: float = 1e-4, runtime: str = 'any') -> ExportReport:
    """Export a model to ONNX for a runtime, and compare it there with PyTorch.

    A classifier gives logits, a backbone feature maps, see
    :class:`~mmkcr.deploy.tensor_model.TensorModel`. The file is written beside ``path`` and
    compared; only a file that agrees is moved to ``path``, by a rename.

    Args:
        model (nn.Module): A backbone or task model, on the CPU; it is not changed.
        path (str | Path): Output file; an existing one is replaced.
        input_shape (Sequence[int]): (C, H, W) of the images. Defaults to (3, 224, 224).
        dynamic_size (bool, optional): Make height and width dynamic, beside the batch. A backbone
            that branches on the size of its feature maps (Swin without ``pad_small_map``), or that
            ONNX cannot express for other sizes than its own (plain ViTs of timm), is exported for
            ``input_shape``, and the report says so. Defaults to None: dynamic for ``'any'``, else
            fixed, which is faster.
        batch_sizes (Sequence[int]): Sizes of the compared batches. Defaults to 1, 2 and 5.
        tolerance (float): Largest permitted difference, see :class:`ExportReport`. Defaults to
            1e-4.
        runtime (str): Runtime in which the file is fast: ``'onnxruntime'``, ``'openvino'``,
            ``'tensorrt'``, or ``'any'`` (compared in ONNX Runtime). Each runtime runs any file.
            Defaults to ``'any'``.

    Returns:
        ExportReport: The file, and its distance from PyTorch at each compared shape.

    Raises:
        ExportMismatch: The outputs differ; nothing is written.
        ImportError: The runtime is not installed.
        ValueError: A shape or batch size that is not positive, a supernet, weights that are not
            fp32, not on the CPU or too large for one file, another runtime, or a model that the
            exporter cannot trace.
    """
    if len(input_shape) != 3 or not batch_sizes or min(*input_shape, *batch_sizes) < 1:
        raise ValueError('expected a shape (C, H, W) and batch sizes of positive numbers, found '
                         f'{tuple(input_shape)} and {tuple(batch_sizes)}')
    model, shape = unwrap(model), tuple(input_shape)
    _check_exportable(model)
    require_runtime(_comparing_runtime(runtime))
    write = partial(_write_onnx, model, Path(path), shape, batch_sizes, tolerance, runtime)
    notice = ''
    with eval_mode(model):
        if dynamic_size or dynamic_size is None and runtime == 'any':
            try:
                return write(dynamic=True)
            except Exception as error:  # the exporter raises many kinds
                # a backbone that branches on the size of its maps agrees at the traced size alone
                why = 'at another size the file does not give the outputs of PyTorch' \
                    if isinstance(error, ExportMismatch) else 'an export for any size failed'
                notice = (f'height and width are fixed at {shape[1]} x {shape[2]}, because {why} '
                          f'({_first_line(error)}): export again with `--shape` for another size')
        return write(dynamic=False, notice=notice)


def _check_exportable(model: nn.Module) -> None:
    """Refuse a supernet, and weights that are not fp32, not on the CPU or too large for a file."""
    # gates would be traced as constants of this moment
    if holders(model):
        raise ValueError('expected a dense model or a subnet to export, found a supernet with '
                         f'{len(holders(model))} gates: slim it first (`mmkcr slim`)')
    others = {f'{value.dtype} on {value.device}' for value in model.parameters()}
    if others := sorted(others - {'torch.float32 on cpu'}):
        raise ValueError('expected a model with weights of torch.float32 on the CPU to export, '
                         f'found {others[0]}: give `model.float().cpu()`')
    size = 4 * count_params(model)
    if size >= 2**31:  # bytes of one protobuf message
        raise ValueError('expected weights of less than 2 GiB, the most that one ONNX file holds, '
                         f'found {size / 2**30:.1f} GiB')


def _comparing_runtime(runtime: str) -> str:
    """The runtime that a file is compared in: ONNX Runtime where a file is for any."""
    return 'onnxruntime' if runtime == 'any' else runtime


def _write_onnx(model: nn.Module, path: Path, shape: tuple[int, ...], batch_sizes: Sequence[int],
                tolerance: float, runtime: str, dynamic: bool, notice: str = '') -> ExportReport:
    """Trace a model, write the file and compare it; a file that differs is not kept.

    Args:
        model (nn.Module): The model, in eval mode.
        path (Path): Output file.
        shape (tuple[int, int, int]): (C, H, W).
        batch_sizes, tolerance, runtime: See :func:`export_onnx`.
        dynamic (bool): Whether height and width are dynamic.
        notice (str): Of the report. Defaults to ``''``.
    """
    import onnx
    view, compared = TensorModel(model), _comparing_runtime(runtime)
    shapes = [(batch, *shape) for batch in batch_sizes]
    if dynamic:
        channels, height, width = shape
        # other sizes than the traced ones, and other aspect ratios
        shapes += [(1, channels, height * 3 // 2, width), (2, channels, height + 3, width + 13)]
    graph = _trace(prepare(view.model, runtime, dynamic), shape, dynamic)
    with atomic_write(path) as temporary:
        # the file itself tells its MACs, and at which size, to whoever times it
        graph.metadata_props.add(key=f'{_META}.macs', value=str(view.count_macs(shape)))
        graph.metadata_props.add(key=f'{_META}.input_shape', value=_format_shape(shape))
        onnx.save(graph, temporary)
        errors = compare_onnx(view, temporary, shapes, runtime=compared)
        _check_errors(errors, tolerance, compared)
    return ExportReport(path, compared, dynamic, errors, notice)


def export_program(model: nn.Module, path: str | Path, input_shape: Sequence[int]) -> None:
    """Write a model as a program of ``torch.export``, for PyTorch alone, and compare it.

    ``torch.export.load(path).module()`` takes any number of images, and returns the tensors of
    :class:`~mmkcr.deploy.tensor_model.TensorModel`.

    Args:
        model (nn.Module): A backbone or task model; it is not changed.
        path (str | Path): Output file; an existing one is replaced.
        input_shape (Sequence[int]): (C, H, W) of the images.

    Raises:
        ExportMismatch: The outputs differ by more than 1e-4; nothing is written.
        ValueError: The model cannot be traced.
    """
    with eval_mode(model), torch.no_grad(), atomic_write(path) as temporary:
        view = TensorModel(model)
        images = next(model.parameters()).new_zeros(2, *input_shape)
        try:
            # PyTorch prints the graph so far, and the error tells what stopped it
            with quiet(), redirect_stderr(io.StringIO()):
                program = torch.export.export(
                    view, (images, ), dynamic_shapes=dict(images={0: torch.export.Dim.AUTO}))
        except Exception as error:  # of whatever a module does
            raise ValueError(f'expected a model that `torch.export` takes, found '
                             f'`{type(view.model).__name__}`, which it does not: '
                             f'{_first_line(error)}') from error
        torch.export.save(program, temporary)
        module = torch.export.load(temporary).module()
        errors = {(batch, *input_shape): _difference(
            view, module, torch.randn(batch, *input_shape).to(images)) for batch in (1, 3)}
        _check_errors(errors, 1e-4, 'torch.export')


def _check_errors(errors: dict[Shape, float], tolerance: float, runtime: str) -> None:
    worst = max(errors, key=errors.get)
    # not <=: nan must fail, too
    if not errors[worst] <= tolerance:
        raise ExportMismatch(f'expected outputs within {tolerance:g} of PyTorch in `{runtime}`, '
                             f'found {errors[worst]:.3g} at input {_format_shape(worst)}')


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()),
                type(error).__name__)[:200]


def _trace(prepared: TensorModel, shape: Sequence[int], dynamic: bool) -> 'object':
    """An ONNX graph from ``images`` to ``output``, or to ``output0`` and so on."""
    traced = find_padding_shape(prepared, shape) if dynamic else tuple(shape)
    names = {0: 'batch', 2: 'height', 3: 'width'} if dynamic else {0: 'batch'}
    images = torch.zeros(2, *traced)
    with torch.no_grad(), quiet(), without_fast_path(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'traced.onnx'
        result = prepared(images)
        outputs = ['output'] if isinstance(result, Tensor) else \
            [f'output{index}' for index in range(len(result))]
        try:
            torch.onnx.export(
                prepared, (images, ), str(path), dynamo=False, opset_version=OPSET,
                input_names=['images'], output_names=outputs,
                dynamic_axes=dict(images=names, **{name: {0: 'batch'} for name in outputs}))
            return _fold_constants(path)
        except Exception as error:  # of whatever a module does, too
            raise ValueError('expected a model that can be exported to ONNX, found '
                             f'`{type(prepared.model).__name__}`, which cannot: '
                             f'{_first_line(error)}{_block_of(error, prepared, images)}') from error


def _block_of(error: Exception, prepared: TensorModel, images: Tensor) -> str:
    """Where a model calls the operator that an error of the exporter names: the end of a message.

    It is empty if the error names none, or if the trace does not have it under this name.
    """
    operator = _OPERATOR.search(str(error))
    if operator is None:
        return ''
    nodes = torch.jit.trace(prepared, images, check_trace=False).inlined_graph.nodes()
    for node in nodes:
        # the exporter calls `aten::sort` Sort; in place operators end with an underscore
        if node.kind().rpartition('::')[2].rstrip('_') == operator[1].lower():
            # such as `__module.model/__module.model.layers.0`
            block = node.scopeName().rpartition('__module.')[2].partition('.')[2]
            return f' (in `{block}`)' if block else ''
    return ''


def _fold_constants(path: Path) -> 'object':
    """A traced graph after ONNX Runtime's basic optimisations, which are valid everywhere."""
    import onnx
    import onnxruntime
    options, target = onnxruntime.SessionOptions(), path.with_suffix('.folded')
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    # a matrix product of tokens stays one node, as other runtimes expect it
    onnxruntime.InferenceSession(str(path), options, ['CPUExecutionProvider'],
                                 disabled_optimizers=['MatMulAddFusion'])
    graph = onnx.load(target)
    used = [entry for entry in graph.opset_import if not entry.domain]
    del graph.opset_import[:]  # ONNX Runtime declares all of its own, too
    graph.opset_import.extend(used)
    return graph


def find_padding_shape(model: nn.Module, shape: Sequence[int]) -> tuple[int, int, int]:
    """A shape (C, H, W) that pads every map of the model; its sides are odd and larger.

    The hosts skip padding where it would do nothing, and then a trace would not contain it.
    In the graph it has no effect on maps that need none.
    """
    strides = [max(m.stride) for m in model.modules()
               if is_of(m, 'mmcv.cnn.bricks.transformer.AdaptivePadding')]
    windows = {m.window_size for m in model.modules()
               if is_of(m, 'mmpretrain.models.utils.ShiftWindowMSA')}
    # one pixel more than whole windows of the smallest map: so every map has one row more, too
    multiple = math.lcm(2, math.prod(strides) * math.lcm(*windows))
    return shape[0], *(-(-side // multiple) * multiple + 1
                       for side in (shape[1] * 5 // 4, shape[2] * 3 // 2))


def read_macs_and_shape(path: str | Path) -> tuple[int | None, tuple[int, ...] | None]:
    """MACs of one image, and its shape (C, H, W), as an ONNX file says them; each may be None.

    A file of dynamic size has the MACs at this shape alone.
    """
    import onnx
    content = onnx.load(path, load_external_data=False)
    notes = {entry.key: entry.value for entry in content.metadata_props}
    sides = content.graph.input[0].type.tensor_type.shape.dim[1:]
    shape = tuple(side.dim_value for side in sides)  # 0 where they are dynamic
    if f'{_META}.input_shape' in notes:  # else of others, or from before it was recorded
        shape = tuple(map(int, notes[f'{_META}.input_shape'].split('x')))
    macs = notes.get(f'{_META}.macs')
    return None if macs is None else int(macs), shape if all(shape) else None


def _format_shape(shape: Sequence[int]) -> str:
    return 'x'.join(map(str, shape))


def compare_onnx(model: nn.Module, path: str | Path, shapes: Sequence[Shape],
                 runtime: str = 'onnxruntime') -> dict[Shape, float]:
    """Compare a file in a runtime with PyTorch, on random images.

    Args:
        model (nn.Module): The network in PyTorch, a function from images to tensors.
        path (str | Path): Its ONNX file.
        shapes (Sequence[tuple[int, int, int, int]]): (B, C, H, W) of the images.
        runtime (str): One of :data:`~mmkcr.deploy.runtimes.PACKAGES`. Defaults to
            ``'onnxruntime'``.

    Returns:
        dict: By shape the largest difference, relative to the largest output (at least 1);
        infinite where the runtime fails or gives outputs of other shapes.
    """
    session = open_onnx(path, runtime)
    generator = torch.Generator().manual_seed(0)

    def run(images: Tensor) -> list[Tensor]:
        return [torch.from_numpy(output) for output in session(images.numpy())]

    return {shape: _difference(model, run, torch.randn(shape, generator=generator))
            for shape in map(tuple, shapes)}


def _difference(model: nn.Module, other: Callable[[Tensor], Any], images: Tensor) -> float:
    with torch.no_grad():
        expected = flat_tensors(model(images), floating=False)
    try:
        outputs = flat_tensors(other(images), floating=False)
    except Exception:  # the runtimes' errors have no common base but this
        return float('inf')
    if [a.shape for a in expected] != [b.shape for b in outputs]:
        return float('inf')
    # relative to the largest output, but never to less than 1; nan is a mismatch
    return max(float(((a.double() - b.double()).abs().max() / a.double().abs().max().clamp(min=1.))
                     .nan_to_num(math.inf, math.inf)) for a, b in zip(expected, outputs))
