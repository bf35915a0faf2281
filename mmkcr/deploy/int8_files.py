"""Dense and slim networks in fp32 and int8, as files of a runtime, side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from mmkcr.core import eval_mode
from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.int8 import quantize_onnx
from mmkcr.deploy.latency import measure_pair
from mmkcr.deploy.runtimes import open_onnx
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.models.tasks import deciding_scores, find_task, unwrap


class DeployedFile(NamedTuple):
    """One file and its measurements.

    Args:
        name (str): ``'dense'``, ``'slim'``, ``'dense int8'`` or ``'slim int8'``.
        path (Path): The file.
        bytes (int): Its size.
        ratio (float): Its time over that of the dense fp32 file.
        error (float): Difference from the dense network's outputs in PyTorch on held-out images,
            relative to their norm.
        same (float, optional): Share of images with the same class as there; None for maps.
    """

    name: str
    path: Path
    bytes: int
    ratio: float
    error: float
    same: float | None


def deploy_int8(dense: nn.Module, slim: nn.Module, images: Sequence[np.ndarray],
                held_out: Sequence[np.ndarray], folder: Path, runtime: str = 'onnxruntime',
                repeats: int = 15) -> list[DeployedFile]:
    """Export both networks for a runtime, quantise both, and measure the four files.

    Args:
        dense (nn.Module): Task model or backbone.
        slim (nn.Module): The compressed one.
        images (Sequence[np.ndarray]): Calibration batches (B, C, H, W), normalised.
        held_out (Sequence[np.ndarray]): Batches that outputs are compared on.
        folder (Path): Where the files are written.
        runtime (str): ``'onnxruntime'`` or ``'openvino'``. Defaults to ``'onnxruntime'``.
        repeats (int): Number of pairs that are timed, at batch 1 on one thread. Defaults to 15.
    """
    shape, files = images[0].shape[1:], {}
    for name, model in (('dense', dense), ('slim', slim)):
        files[name] = export_onnx(model, folder / f'{name}_{runtime}.onnx', shape, False, (1, 2),
                                  runtime=runtime).path
    # quantised from the fp32 files, with the same images for both networks
    for name in ('dense', 'slim'):
        files[f'{name} int8'] = folder / f'{name}_{runtime}_int8.onnx'
        quantize_onnx(files[name], files[f'{name} int8'], images, runtime)
    with eval_mode(dense), torch.no_grad():
        view = TensorModel(dense)
        expected = np.concatenate([_last(dense, view(torch.from_numpy(batch)))
                                   for batch in held_out])
    found = []
    for name, path in files.items():
        # every file in turns with the dense fp32 file, itself included
        image = torch.from_numpy(images[0][:1])
        timing = measure_pair(files['dense'], path, image, repeats, 3, runtime, 1)
        session = open_onnx(path, runtime)
        outputs = np.concatenate([_last(dense, session(batch)) for batch in held_out])
        error = np.linalg.norm(outputs - expected) / max(np.linalg.norm(expected), 1e-12)
        same = float((outputs.argmax(1) == expected.argmax(1)).mean()) if expected.ndim == 2 \
            else None
        found.append(DeployedFile(name, path, path.stat().st_size, timing.ratio, float(error),
                                  same))
    return found


def _last(model: nn.Module, outputs: Any) -> np.ndarray:
    """Logits, or the deepest map."""
    outputs = deciding_scores(find_task(unwrap(model)), outputs)
    # copied: the runtimes reuse the memory of their outputs in the next call
    return np.array(outputs[-1] if isinstance(outputs, (list, tuple)) else outputs)
