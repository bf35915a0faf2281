"""Opening ONNX files in the runtimes that are used for deployment."""

import contextlib
import importlib.util
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from mmkcr.core import atomic_write
from mmkcr.core.checks import one_line

#: Packages to install, by runtime of ONNX files.
PACKAGES: dict[str, str] = dict(onnxruntime='onnxruntime', openvino='openvino',
                                tensorrt='onnxruntime-gpu tensorrt')
#: PyTorch itself, and the runtimes of ONNX files.
RUNTIMES = ('eager', 'compiled', *PACKAGES)
#: Messages of runtimes about operators that they lack, or lack for a type of numbers.
_LACKS = re.compile(
    r'find an implementation for \S+|No Op registered for \S+|\S+ is not a registered|'
    # of OpenVINO
    r'(following (ONNX )?|rule found for )operations?[\w ]*:?[\w., -]*')
_PRECISION = 'mmkcr.precision'
Session = Callable[[np.ndarray], list[np.ndarray]]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within the block, libraries print no warnings and log errors only."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        logging.disable(before)


def require_runtime(runtime: str) -> None:
    """Check that a runtime is installed.

    Args:
        runtime (str): One of :data:`RUNTIMES`.

    Raises:
        ImportError: It is not installed; the message says how to install it.
        ValueError: Another runtime.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f'expected a runtime among {RUNTIMES}, found {runtime!r}')
    # that ONNX Runtime has TensorRT is checked where a file is opened
    package = 'onnxruntime' if runtime == 'tensorrt' else runtime
    if runtime in PACKAGES and importlib.util.find_spec(package) is None:
        raise ImportError(f'expected the runtime `{runtime}`, found that it is not installed: '
                          f'pip install {PACKAGES[runtime]}')


def open_onnx(path: str | Path, runtime: str = 'onnxruntime', threads: int | None = None,
              shape: Sequence[int] | None = None, device: str = 'cpu') -> Session:
    """Open an ONNX file.

    Args:
        path (str | Path): A file with one input, the images.
        runtime (str): One of :data:`PACKAGES`. Defaults to ``'onnxruntime'``.
        threads (int, optional): CPU threads. Defaults to None: the runtime's default.
        shape (Sequence[int], optional): (B, C, H, W) of all future images: free dimensions
            are fixed to it, so that the runtime can plan. Defaults to None: they stay free.
        device (str): ``'cpu'``, ``'cuda'`` or, with a number, ``'cuda:1'``. TensorRT always uses a
            GPU, OpenVINO the CPU. Defaults to ``'cpu'``.

    Returns:
        Callable: Takes images (B, C, H, W), returns the outputs, all fp32 arrays. OpenVINO's are
        only valid until the next call.

    Raises:
        FileNotFoundError, ImportError: The file, or the runtime for this device, is missing.
        ValueError: The runtime cannot read the file, or lacks an operator or device.
    """
    require_runtime(runtime)
    if runtime == 'openvino' and device != 'cpu':
        raise ValueError(f"expected the device 'cpu' for `openvino`, found {device!r}")
    if not Path(path).is_file():
        raise FileNotFoundError(f'expected an ONNX file at `{path}`, found none')
    opened = _open_openvino if runtime == 'openvino' else _open_onnxruntime
    try:
        return opened(str(path), runtime, threads, shape, device)
    except ImportError:
        raise
    except Exception as error:  # the runtimes' errors have no other common base
        raise _refusal(path, runtime, error) from error


def _refusal(path: str | Path, runtime: str, error: Exception) -> ValueError:
    """The error of a runtime in one sentence, with the places of operators that it lacks."""
    text = one_line(error, 10_000)  # all of it: an operator may be named at its end
    places: dict[str, dict[str, None]] = {}
    if lacks := _LACKS.search(text):
        import onnx
        name = re.search(r"node with name '([^']+)", text)  # others may have types that it knows
        for node in onnx.load(path, load_external_data=False).graph.node:
            if re.search(rf'\b{node.op_type}\b', lacks[0]) and (not name or node.name == name[1]):
                place = module_path(node.name or node.output[0])
                places.setdefault(node.op_type, {})[f'`{place}`'] = None
    if not places:
        return ValueError(f'expected an ONNX file that `{runtime}` can read, found `{path}` '
                          f'({text[:300]})')
    named = '; '.join(
        f'`{kind}` in ' + ', '.join(list(blocks)[:3])
        + (f' and {len(blocks) - 3} others' if len(blocks) > 3 else '')
        for kind, blocks in places.items())
    return ValueError(f'expected a graph of operators that `{runtime}` has, found {named} of '
                      f'`{path}`')


def module_path(name: str) -> str:
    """Path of the module that a node of an exported graph belongs to; other names as they are.

    ``'/model/layers.0/ffn/layers/layers.0/MatMul'`` gives ``'layers.0.ffn.layers.0'``.
    """
    if not name.startswith('/'):
        return name
    # the child of a container is called by a name that begins with the container's
    parts = re.sub(r'(?<=/)([^/]+)/(?=\1\.)', '', name).split('/')[1:-1]
    # TensorModel holds the model
    return '.'.join(parts[parts[:1] == ['model']:]) or name


def _open_onnxruntime(path: str, runtime: str, threads: int | None,
                      shape: Sequence[int] | None, device: str) -> Session:
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if threads is not None:
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        # spinning threads would be counted as work
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    if shape is not None:
        for name, size in zip(('batch', 'channels', 'height', 'width'), shape):
            options.add_free_dimension_override_by_name(name, size)
    kind, _, index = device.partition(':')
    names = ['TensorrtExecutionProvider'] * (runtime == 'tensorrt')
    names += ['CUDAExecutionProvider'] if names or kind == 'cuda' else ['CPUExecutionProvider']
    session = onnxruntime.InferenceSession(path, options, [
        (name, dict(device_id=int(index))) if index else name for name in names])
    if session.get_providers()[0] != names[0]:  # it goes on with another one after a warning
        raise ImportError(f'expected ONNX Runtime with `{names[0]}`, found '
                          f'{session.get_providers()}: pip install {PACKAGES["tensorrt"]}')
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})


def _open_openvino(path: str, runtime: str, threads: int | None,
                   shape: Sequence[int] | None, device: str) -> Session:
    import openvino
    core = openvino.Core()
    model = core.read_model(path)
    if shape is not None:
        model.reshape(list(shape))
    # fp32 unless the file says otherwise: OpenVINO would use bf16 if the processor has it
    note = ['framework', _PRECISION]  # where OpenVINO keeps the notes of an ONNX file
    precision = model.get_rt_info(note).value if model.has_rt_info(note) else 'f32'
    config = dict(INFERENCE_PRECISION_HINT=precision, NUM_STREAMS='1')
    if threads is not None:
        config.update(INFERENCE_NUM_THREADS=str(threads))
    request = core.compile_model(model, 'CPU', config).create_infer_request()

    def run(images: np.ndarray) -> list[np.ndarray]:
        outputs = request.infer([images], share_inputs=True, share_outputs=True)
        return [outputs[index] for index in range(len(outputs))]

    return run


def half_precision(runtime: str) -> str:
    """The 16-bit type that a runtime computes in on this processor, as the runtime names it.

    Raises:
        ValueError: The runtime or the processor has none.
    """
    if runtime == 'openvino':
        import openvino
        able = openvino.Core().get_property('CPU', 'OPTIMIZATION_CAPABILITIES')
        for name, hint in (('BF16', 'bf16'), ('FP16', 'f16')):
            if name in able:
                return hint
    raise ValueError(f'expected 16-bit instructions that `{runtime}` uses on this processor, found '
                     'none')


def set_precision(source: str | Path, target: str | Path, precision: str) -> None:
    """Write a copy of an ONNX file that says in which type OpenVINO computes it.

    Args:
        source (str | Path): An ONNX file.
        target (str | Path): Output file; an existing one is replaced.
        precision (str): Type as OpenVINO names it, ``'bf16'`` or ``'f16'``; :func:`open_onnx` reads
            it.
    """
    import onnx
    model = onnx.load(source)
    model.metadata_props.add(key=_PRECISION, value=precision)
    with atomic_write(target) as path:
        onnx.save(model, path)
