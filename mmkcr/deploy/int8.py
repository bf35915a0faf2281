"""Post-training static quantisation of ONNX files, by the runtimes' own libraries."""

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from mmkcr.core import atomic_write
from .runtimes import quiet, require_runtime

#: Quantisation library of each runtime.
QUANTIZERS: dict[str, str] = dict(onnxruntime='onnxruntime', openvino='nncf')


def quantize_onnx(source: str | Path, target: str | Path,
                  images: Sequence[np.ndarray], runtime: str = 'onnxruntime') -> None:
    """Write the int8 form of an ONNX file.

    Ranges are chosen from the images, by ONNX Runtime's own quantiser or, for OpenVINO, by NNCF.
    Weights get one scale per output channel. Both write ONNX with quantise and
    dequantise nodes. So any runtime reads the file, but only the intended one runs it fast.

    Args:
        source (str | Path): A file of :func:`~mmkcr.deploy.export.export_onnx`.
        target (str | Path): Output file; an existing one is replaced.
        images (Sequence[np.ndarray]): Calibration batches (B, C, H, W), normalised.
        runtime (str): One of :data:`QUANTIZERS`. Defaults to ``'onnxruntime'``.

    Raises:
        ImportError: The library is not installed; the message says what to install.
        ValueError: Another runtime, or no images.
    """
    require_quantizer(runtime)
    if not len(images):
        raise ValueError('expected at least one batch of calibration images, found none')
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / 'int8.onnx'
        quantize = _by_nncf if runtime == 'openvino' else _by_onnxruntime
        with quiet():
            quantize(Path(source), written, images)
        with atomic_write(Path(target)) as path:
            path.write_bytes(written.read_bytes())


def require_quantizer(runtime: str) -> None:
    """Check that a runtime of :data:`QUANTIZERS` and its quantiser are installed."""
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
    quantized = nncf.quantize(model, nncf.Dataset(singles, lambda image: {name: image}),
                              subset_size=len(singles), model_type=nncf.ModelType.TRANSFORMER)
    onnx.save(quantized, target)


def _by_onnxruntime(source: Path, target: Path, images: Sequence[np.ndarray]) -> None:
    import onnx
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process
    prepared = target.with_name('prepared.onnx')
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    name = onnx.load(prepared, load_external_data=False).graph.input[0].name
    feeds = ({name: batch} for batch in images)
    reader = SimpleNamespace(get_next=lambda: next(feeds, None))  # all that is asked of a reader
    quantize_static(str(prepared), str(target), reader,
                    quant_format=QuantFormat.QDQ, per_channel=True,
                    activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                    # the operators that hold the MACs
                    op_types_to_quantize=['MatMul', 'Gemm', 'Conv'],
                    extra_options=dict(ActivationSymmetric=False, WeightSymmetric=True))
