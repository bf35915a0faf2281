"""The real network as ONNX files: other image sizes, and int8."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.int8 import quantize_onnx
from mmkcr.deploy.runtimes import open_onnx
from .saliency import SIZE, Saliency

#: Crops that int8's ranges are chosen from.
CALIBRATION = 64


class _Tokens(nn.Module):
    """A backbone that returns all of its tokens."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.inner = backbone

    def forward(self, images: Tensor) -> Tensor:
        return self.inner.forward_features(images)


def exported(backbone: nn.Module, path: Path, size: int, runtime: str) -> Path:
    """A file of a backbone at an image size, made if it is not there."""
    if not path.is_file():
        backbone = copy.deepcopy(backbone)
        if size != SIZE:
            backbone.set_input_size(img_size=size)
        export_onnx(_Tokens(backbone).eval(), path, (3, size, size), False, (1, ), 1e-3, runtime)
    return path


def int8(source: Path, path: Path, images: Tensor, runtime: str) -> Path:
    """The int8 form of a file, made if it is not there."""
    if not path.is_file():
        quantize_onnx(source, path, [batch.numpy() for batch in images[:CALIBRATION].split(1)],
                      runtime)
    return path


def file_tokens(path: Path, images: Tensor, runtime: str) -> Tensor:
    """All tokens (N, 1 + P, C) of a file for images (N, 3, S, S)."""
    session = open_onnx(path, runtime, 1, (1, *images.shape[1:]))
    return torch.cat([torch.tensor(session(batch.numpy())[0]) for batch in images.split(1)])


def file_maps(dense: Saliency, path: Path, images: Tensor, runtime: str) -> tuple[Tensor, Tensor]:
    """Patch tokens and saliency of a file, see :meth:`~.saliency.Saliency.maps`."""
    patches = file_tokens(path, images, runtime)[:, 1:]
    with torch.no_grad():
        return patches, torch.cat([dense.decoder(batch) for batch in patches.split(32)])
