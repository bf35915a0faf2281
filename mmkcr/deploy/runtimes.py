"""Opening ONNX files in the runtimes that are used for deployment."""

import importlib.util
import re
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Union

import numpy as np

#: Packages to install, by runtime.
PACKAGES: Dict[str, str] = dict(onnxruntime='onnxruntime', openvino='openvino',
                                tensorrt='onnxruntime-gpu tensorrt')
Session = Callable[[np.ndarray], List[np.ndarray]]
_OPERATOR = re.compile(r'for ([A-Z]\w+)\(\d+\) node with name \'([^\']*)\'')  # of ONNX Runtime
_OPERATIONS = re.compile(  # of OpenVINO
    r'following (?:ONNX )?operations?(?: that are not supported)?:?\s*([\w., ]+)')


def require_runtime(runtime: str) -> None:
    """Check that a runtime is installed.

    Args:
        runtime (str): One of :data:`PACKAGES`.

    Raises:
        ValueError: Another runtime.
        ImportError: It is not there; the message says what to install.
    """
    if runtime not in PACKAGES:
        raise ValueError(f'expected a runtime among {sorted(PACKAGES)}, found {runtime!r}')
    package = 'onnxruntime' if runtime == 'tensorrt' else runtime
    there = importlib.util.find_spec(package) is not None
    if there and runtime == 'tensorrt':
        import onnxruntime
        there = 'TensorrtExecutionProvider' in onnxruntime.get_available_providers()
    if not there:
        raise ImportError(f'expected the runtime `{runtime}`, found that it is not installed: '
                          f'pip install {PACKAGES[runtime]}')


def open_onnx(path: Union[str, Path], runtime: str = 'onnxruntime', threads: Optional[int] = None,
              shape: Optional[Sequence[int]] = None, device: str = 'cpu') -> Session:
    """Open an ONNX file.

    Args:
        path (str | Path): A file with one input, the images.
        runtime (str): One of :data:`PACKAGES`. Defaults to ``'onnxruntime'``.
        threads (int, optional): CPU threads. Defaults to None: the runtime's default.
        shape (Sequence[int], optional): (B, C, H, W) of all future images: free dimensions
            are fixed to it, so that the runtime can plan. Defaults to None.
        device (str): ``'cpu'`` or ``'cuda'``; TensorRT always uses the latter. Defaults to
            ``'cpu'``.

    Returns:
        Callable: Takes images (B, C, H, W), returns the outputs, all fp32 arrays. OpenVINO's are
        only valid until the next call.

    Raises:
        FileNotFoundError: There is no such file.
        ImportError: The runtime is not installed.
        ValueError: The runtime cannot read the file, or lacks an operator: the message names it and
            its place in the network.
    """
    require_runtime(runtime)
    if not Path(path).is_file():
        raise FileNotFoundError(f'expected an ONNX file at `{path}`, found none')
    opened = _open_openvino if runtime == 'openvino' else _open_onnxruntime
    try:
        return opened(str(path), runtime, threads, shape, device)
    except Exception as error:  # the runtimes' errors have no other common base
        _refuse(path, runtime, error)


def _refuse(path: Union[str, Path], runtime: str, error: Exception) -> NoReturn:
    """Report the error of a runtime in one sentence."""
    text = ' '.join(str(error).split())
    missing = _OPERATOR.search(text)
    if missing:
        raise ValueError(f'expected a graph of operators that `{runtime}` has, found '
                         f'`{missing[1]}` at `{missing[2]}` in `{path}`') from error
    operations = _OPERATIONS.search(text)
    if operations:
        raise ValueError(f'expected a graph of operators that `{runtime}` has, found '
                         f'{operations[1].strip()} in `{path}`') from error
    raise ValueError(f'expected an ONNX file that `{runtime}` can read, found `{path}` '
                     f'({text[:300]})') from error


def _open_onnxruntime(path: str, runtime: str, threads: Optional[int],
                      shape: Optional[Sequence[int]], device: str) -> Session:
    session = onnxruntime_session(path, runtime, threads, shape, device)
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})


def onnxruntime_session(path: str, runtime: str = 'onnxruntime', threads: Optional[int] = None,
                        shape: Optional[Sequence[int]] = None, device: str = 'cpu',
                        profile: Optional[str] = None) -> Any:
    """An ``InferenceSession`` of ONNX Runtime with the arguments of :func:`open_onnx`.

    Args:
        profile (str, optional): Start of the name of a file that gets the times of all operators.
            Defaults to None: no profile.
    """
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, profile
    if threads is not None:
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        # spinning threads would be counted as work
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
    if shape is not None:
        for name, size in zip(('batch', 'channels', 'height', 'width'), shape):
            options.add_free_dimension_override_by_name(name, size)
    providers = dict(cpu=['CPUExecutionProvider'], cuda=['CUDAExecutionProvider'])[device]
    if runtime == 'tensorrt':
        providers = ['TensorrtExecutionProvider', 'CUDAExecutionProvider']
    return onnxruntime.InferenceSession(path, options, providers)


def _open_openvino(path: str, runtime: str, threads: Optional[int],
                   shape: Optional[Sequence[int]], device: str) -> Session:
    request = openvino_request(path, threads, shape)

    def run(images: np.ndarray) -> List[np.ndarray]:
        found = request.infer([images], share_inputs=True, share_outputs=True)
        return [found[index] for index in range(len(found))]

    return run


def openvino_request(path: str, threads: Optional[int] = None,
                     shape: Optional[Sequence[int]] = None, **settings: str) -> Any:
    """An ``InferRequest`` of OpenVINO with the arguments of :func:`open_onnx`.

    Args:
        **settings: Further properties of the compiled model.
    """
    import openvino
    core = openvino.Core()
    model = core.read_model(path)
    if shape is not None:
        model.reshape(list(shape))
    # fp32 as everywhere else: OpenVINO would use bf16 if the processor has it
    config: Dict[str, Any] = dict(settings, INFERENCE_PRECISION_HINT='f32', NUM_STREAMS='1')
    if threads is not None:
        config.update(INFERENCE_NUM_THREADS=str(threads))
    return core.compile_model(model, 'CPU', config).create_infer_request()
