"""What a few images tell before a calibration: rows of layers, sizes of outputs, memory, time."""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmkcr.core.forward import flat_tensors
from .batches import numbered
from .calibration import gradients_of_activations, output_scales
from .options import Forward
from .readers import count_rows, weight_matrix

#: Images that are looked at, one by one.
IMAGES = 4
#: Maximum number of images in a batch: more are no faster.
BATCH = 16
#: Share of the memory that the activations of a batch may take.
ACTIVATIONS = 1 / 4


class Survey(NamedTuple):
    """What the first images tell of a network."""

    #: Rows of an image that each layer with weights gets.
    rows: dict[nn.Module, float]
    #: See :func:`~mmkcr.closed_form.calibration.output_scales`.
    scales: list[float]
    #: What a pass of an image forward and backward keeps at a time.
    bytes: int
    #: Of an image's forward pass, and of its backward pass.
    seconds: tuple[float, float]
    #: Different shapes (C, H, W) of the images.
    sizes: list[tuple[int, ...]]

    def needed(self, layers: Iterable[nn.Module], enough: float, least: int,
               gradients: bool = False) -> int:
        """Number of images, at least ``least``, with enough rows for the moments of some layers.

        Enough is a number of rows per input of a layer; with ``gradients`` per output.
        """
        side = 0 if gradients else 1
        return max([least, *(self.images_for(layer, enough * weight_matrix(layer).shape[side])
                             for layer in layers)])

    def images_for(self, layer: nn.Module, rows: float) -> int:
        """Number of images that give so many rows of a layer."""
        return math.ceil(rows / max(self.rows[layer], 1))

    def batch(self, memory: int) -> int:
        """Images of a batch, for so many bytes in all.

        Raises:
            ValueError: One image takes more than all of it.
        """
        if self.bytes > memory:
            size = ' x '.join(map(str, self.sizes[0])) if self.sizes else 'this size'
            raise ValueError(
                f'expected memory for the activations of an image of {size}, about '
                f'{self.bytes / 2**30:.2g} GB, found a limit of {memory / 2**30:.2g} GB: raise it '
                '(`--memory`, `memory`), free some, or take smaller images')
        return min(max(int(ACTIVATIONS * memory / max(self.bytes, 1)), 1), BATCH)


def survey(model: nn.Module, batches: Sequence[Any], forward: Forward,
           backward: bool = True) -> Survey:
    """Run the first images of a network in eval mode, the first of them backward, too.

    Without ``backward`` neither memory nor time of a pass backward are measured.
    """
    layers = [layer for layer in model.modules()
              if isinstance(layer, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d))]
    rows, squares, sizes = dict.fromkeys(layers, 0.), [], []
    first_batches = list(numbered(batches[:IMAGES]))

    def count(layer: nn.Module, args: tuple, out: Tensor) -> None:
        rows[layer] += count_rows(layer, args[0], out)

    with ExitStack() as stack, torch.no_grad():
        for layer in layers:
            stack.enter_context(layer.register_forward_hook(count))
        for batch, images in first_batches:
            sizes += [tuple(value.shape[-3:]) for value in flat_tensors(batch)[:1]]
            start = time.perf_counter()
            outputs = flat_tensors(forward(model, batch))
            spent = (time.perf_counter() - start) / len(images)
            squares.append([scale**2 * len(images)
                            for scale in output_scales(outputs, len(images))])
    scales = [(sum(of_output) / images.stop)**0.5 for of_output in zip(*squares)]
    first, numbers = first_batches[0]
    taken, later = _backward(model, layers, first, forward) if backward else (0, 0.)
    return Survey({layer: value / images.stop for layer, value in rows.items()}, scales,
                  taken // len(numbers), (spent, later / len(numbers)), list(dict.fromkeys(sizes)))


def _backward(model: nn.Module, layers: Sequence[nn.Module], batch: Any,
              forward: Forward) -> tuple[int, float]:
    """Bytes that a forward keeps for the pass backward, and the seconds of that."""
    kept: dict[int, int] = {}  # by address
    weights = {value.untyped_storage().data_ptr() for value in model.parameters()}

    def keep(value: Tensor) -> Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = max(kept.get(storage.data_ptr(), 0), storage.nbytes())
        return value

    with ExitStack() as stack, torch.enable_grad():
        stack.enter_context(gradients_of_activations(model, ()))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value))
        for layer in layers:  # their inputs are kept until their gradients come
            stack.enter_context(layer.register_forward_hook(
                lambda _, args, __: [keep(args[0].detach())] and None))
        outputs = [out for out in flat_tensors(forward(model, batch)) if out.requires_grad]
        # outputs, their gradients, and gradients on their way
        rest = 2 * sum(map(Tensor.nelement, outputs)) * 4 + 3 * max(kept.values(), default=0)
        start = time.perf_counter()
        if outputs:
            torch.autograd.backward(outputs, [torch.zeros_like(out) for out in outputs])
    return sum(kept.values()) + rest, time.perf_counter() - start
