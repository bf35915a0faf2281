"""Readers: the layers whose inputs are the units of a site, as products of matrices.

A reader is the output projection of an MLP or of an attention, or a layer that reads the channels
of a map. Its inputs and outputs are rows, and its weight is the matrix between them.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core import Axis
from mmkcr.functional.moments import Moments
from mmkcr.functional.refit import patches
from mmkcr.models.sites.base import HostSite


class Reader(NamedTuple):
    """A layer that reads the units of a site: its path from the host, and its axis of inputs."""

    path: str
    axis: Axis

    @property
    def layer(self) -> nn.Module:
        """The layer."""
        return self.axis.module

    @property
    def each(self) -> int:
        """Columns of the weight matrix that belong to one unit."""
        return self.axis.repeats * self.axis.inner * kernel_area(self.layer)

    def columns(self, units: Tensor) -> Tensor:
        """Columns of :func:`weight_matrix` by unit, (n * each,), of some of the present units."""
        # (repeats, n, inner) -> (n, repeats, inner), and the kernel's area of columns for each
        inputs = self.axis.entries(units).view(self.axis.repeats, len(units), -1).transpose(0, 1)
        area = kernel_area(self.layer)
        return (inputs[..., None] * area + torch.arange(area).to(units)).flatten()


def readers(site: HostSite) -> list[Reader]:
    """The layers whose input channels are a site's units."""
    paths = {module: path for path, module in site.host.named_modules()}
    return [Reader(paths[axis.module], axis)
            for axis in site.axes() if axis.name == 'weight' and _reads(axis.module, axis.dim)]


def refit_paths(site: HostSite) -> list[str]:
    """Paths of the layers that are refitted: readers, and layers that lose outputs."""
    return [*(reader.path for reader in readers(site)), *site.lost_outputs()]


def _reads(layer: nn.Module, dim: int) -> bool:
    """Whether a dimension of a layer's weight counts its inputs."""
    if isinstance(layer, nn.ConvTranspose2d):  # a refit needs patches that do not overlap
        return dim == 0 and layer.kernel_size == layer.stride and set(layer.padding) == {0}
    return dim == 1 and isinstance(layer, (nn.Linear, nn.Conv2d))


def ordering_readers(site: HostSite) -> list[Reader]:
    """The readers whose inputs have the most common number of columns per unit.

    Units are ordered by these readers alone. The loss at each size is measured with all readers.
    """
    all_readers = readers(site)
    forms = [reader.each for reader in all_readers]
    # of two that are as common, the smaller form
    most = max(forms, key=lambda form: (forms.count(form), -form))
    return [reader for reader, form in zip(all_readers, forms) if form == most]


def kernel_area(layer: nn.Module) -> int:
    """Columns of a weight matrix per input channel: 1, or the area of the kernel."""
    return layer.weight[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1


def weight_matrix(layer: nn.Module) -> Tensor:
    """A layer's weight as the matrix of :func:`input_rows` and :func:`output_rows`."""
    weight = layer.weight.detach()
    # transposed weight (in, out, kh, kw) -> (out kh kw, in); else (out, in) or (out, in kh kw)
    return weight.flatten(1).T if isinstance(layer, nn.ConvTranspose2d) else weight.flatten(1)


def set_weights(layer: nn.Module, matrix: Tensor, bias: Tensor) -> None:
    """Give a layer other weights, in place.

    Args:
        layer (nn.Module): A linear layer or a convolution.
        matrix (Tensor): Its weight in the form of :func:`weight_matrix`, (outputs, features).
        bias (Tensor): Its bias, (outputs,); unused if the layer has none.
    """
    transposed = isinstance(layer, nn.ConvTranspose2d)
    layer.weight.data.copy_((matrix.T if transposed else matrix).reshape(layer.weight.shape))
    if layer.bias is not None:
        # matrix rows of a transposed convolution are (out, taps), but its bias is one per channel
        layer.bias.data.copy_(bias.view(len(layer.bias), -1).mean(1))


def input_rows(layer: nn.Module, x: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Inputs of a linear layer or convolution as rows (n, features) of one matrix product.

    Args:
        layer (nn.Module): The layer.
        x (Tensor): Its input, (..., features), or (B, C, H, W) for a convolution.
        chosen (Tensor, optional): Numbers of the rows to compute, (n,). Defaults to None: all.
    """
    if not isinstance(layer, (nn.Conv2d, nn.ConvTranspose2d)):
        return _rows(x, chosen)
    if isinstance(layer, nn.ConvTranspose2d) or layer.kernel_size == (1, 1) == layer.stride:
        return _rows(x.movedim(1, -1), chosen)
    padding = layer.padding
    if isinstance(padding, str) or layer.padding_mode != 'zeros':
        mode = 'constant' if layer.padding_mode == 'zeros' else layer.padding_mode
        x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=mode), 0
    return _rows(patches(x, layer.kernel_size, layer.stride, padding, layer.dilation), chosen, 3)


def output_rows(layer: nn.Module, out: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Outputs of a linear layer or convolution as rows (n, outputs) of one matrix product.

    Args:
        layer (nn.Module): The layer.
        out (Tensor): Its output, (..., outputs), or (B, C, H, W) for a convolution.
        chosen (Tensor, optional): Numbers of the rows to compute, (n,). Defaults to None: all.
    """
    if isinstance(layer, nn.ConvTranspose2d):  # the patch that one input gives
        return _rows(patches(out, layer.kernel_size, layer.stride), chosen, 3)
    return _rows(out.movedim(1, -1) if isinstance(layer, nn.Conv2d) else out, chosen)


def _rows(values: Tensor, chosen: Tensor | None, features: int = 1) -> Tensor:
    """All positions of a map, or some, as rows; the last axes are features."""
    if chosen is not None:
        places = torch.unravel_index(chosen.to(values.device), values.shape[:-features])
        return values[places].flatten(1)
    return values.reshape(-1, values.shape[-features:].numel())


def count_rows(layer: nn.Module, x: Tensor, out: Tensor) -> int:
    """Number of :func:`input_rows` of a call of a layer, with the input ``x`` and output ``out``.

    Args:
        layer (nn.Module): The layer.
        x (Tensor): Its input.
        out (Tensor): Its output, or a gradient of this shape.
    """
    if isinstance(layer, nn.Conv2d):
        return out.numel() // out.shape[1]
    return x.numel() // x.shape[1 if isinstance(layer, nn.ConvTranspose2d) else -1]


def output_energy(layer: nn.Module, inputs: Moments) -> Tensor:
    """Mean squares of a layer's outputs ``W x + b``, from moments of :func:`input_rows`, (m,)."""
    weight = weight_matrix(layer).to(inputs.mean)
    means = weight @ inputs.mean
    if layer.bias is not None:
        means = means + layer.bias.detach().to(means)
    # E (w x + b)^2 = w C w^T + (w E x + b)^2
    return (weight @ inputs.covariance * weight).sum(1) + means.square()


class Rows(NamedTuple):
    """How many rows of an image enter the moments of a layer."""

    #: For layers of up to 256 inputs; fewer for wider ones, as a row costs inputs^2.
    most: int = 4096
    #: Rows per input that are to come of all images, whatever ``most``.
    enough: float = 0.
    #: Number of images.
    images: int = 1

    def of(self, inputs: int) -> int:
        """Rows of an image for a layer, by its number of inputs."""
        return max(math.ceil(self.enough * inputs / self.images),
                   min(self.most, self.most * 256 // inputs), 1)


def pick(rows: int, most: int, images: Sequence[int] = range(1)) -> Tensor | None:
    """Numbers of some rows of a batch, at random; None for all rows.

    The draw for an image depends on its number among all images, not on its batch. If the rows do
    not divide evenly into images, as rows of regions may not, the batch counts as one image.

    Args:
        rows (int): Number of rows of the batch.
        most (int): Maximum number of rows of an image.
        images (Sequence[int]): Numbers of the batch's images. Defaults to one image.
    """
    images = images if rows % len(images) == 0 else images[:1]
    each = rows // len(images)
    if each <= most:
        return None
    return torch.cat([place * each + torch.randperm(
        each, generator=torch.Generator().manual_seed(image))[:most]
        for place, image in enumerate(images)])
