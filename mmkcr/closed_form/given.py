"""A user's network, images and options: checked before work begins, and kept as one record.

A few images tell how many rows each layer gets, and the sizes, memory and time of a pass.
"""

import copy
import dataclasses
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmkcr.core import count_params
from mmkcr.core.checks import check_finite, one_line
from mmkcr.core.forward import flat_tensors
from mmkcr.core.machine import free_memory
from mmkcr.core.processes import ask_first_process, count_processes
from mmkcr.models.sites.base import check_layers
from mmkcr.models.tasks import is_dense_task, unwrap
from .batches import (
    augment_images,
    count_images,
    count_seen,
    image_shapes,
    number_batches,
    split_batches,
)
from .calibration import gradients_of_activations, output_scales
from .options import ACTIVATIONS, CompressOptions, Forward
from .progress import CompressProgress
from .readers import count_rows, weight_matrix
from .whole import backbone_outputs

#: Images that are looked at, one by one.
IMAGES = 4
#: Maximum number of images in a batch: more are no faster.
BATCH = 16


class Survey(NamedTuple):
    """Numbers of a network that are measured on its first images."""

    #: Rows of an image that each layer with weights gets.
    rows: dict[nn.Module, float]
    #: See :func:`~mmkcr.closed_form.calibration.output_scales`.
    scales: list[float]
    #: Most memory that a pass of an image forward and backward keeps at a time.
    bytes: int
    #: Time of an image's forward pass, and of its backward pass.
    seconds: tuple[float, float]
    #: Different shapes (C, H, W) of the images.
    sizes: list[tuple[int, ...]]

    def needed(self, layers: Iterable[nn.Module], enough: float, least: int,
               gradients: bool = False) -> int:
        """Number of images with enough rows for the moments of some layers.

        Args:
            layers (Iterable[nn.Module]): The layers.
            enough (float): Rows per input of a layer.
            least (int): Minimum number of images.
            gradients (bool): Rows are counted per output, not per input. Defaults to False.
        """
        side = 0 if gradients else 1
        return max([least, *(self.images_for(layer, enough * weight_matrix(layer).shape[side])
                             for layer in layers)])

    def images_for(self, layer: nn.Module, rows: float) -> int:
        """Number of images that together give a number of rows of a layer."""
        return math.ceil(rows / max(self.rows[layer], 1))

    def batch(self, memory: int) -> int:
        """Number of images of a batch.

        Args:
            memory (int): Bytes that may be taken; a batch gets the share :data:`ACTIVATIONS`.

        Raises:
            ValueError: A single image takes more.
        """
        if self.bytes > memory:
            size = ' x '.join(map(str, self.sizes[0])) if self.sizes else 'this size'
            raise ValueError(
                f'expected memory for the activations of an image of {size}, about '
                f'{self.bytes / 2**30:.2g} GB, found a limit of {memory / 2**30:.2g} GB: raise it '
                '(`--memory`, `memory`), free some, or take smaller images')
        return min(max(int(ACTIVATIONS * memory / max(self.bytes, 1)), 1), BATCH)


def survey(model: nn.Module, batches: Sequence[Any], forward: Forward) -> Survey:
    """Run the first images, the very first batch backward, too.

    Args:
        model (nn.Module): The dense network, in the mode ``eval``.
        batches (Sequence): Batches of images; the first :data:`IMAGES` batches are run.
        forward (Callable): Takes the model and a batch; returns the outputs.
    """
    layers = [layer for layer in model.modules()
              if isinstance(layer, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d))]
    rows, squares, sizes = dict.fromkeys(layers, 0.), [], []
    first_batches = list(number_batches(batches[:IMAGES]))

    def count(layer: nn.Module, args: tuple, out: Tensor) -> None:
        """Count the rows of a layer's call with its args and its out."""
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
    taken, later = _backward(model, layers, first, forward)
    return Survey({layer: value / images.stop for layer, value in rows.items()}, scales,
                  taken // len(numbers), (spent, later / len(numbers)), list(dict.fromkeys(sizes)))


def _backward(model: nn.Module, layers: Sequence[nn.Module], batch: Any,
              forward: Forward) -> tuple[int, float]:
    """Bytes that a forward keeps for the pass backward, and the seconds of the pass backward."""
    kept: dict[int, int] = {}  # by address
    weights = {value.untyped_storage().data_ptr() for value in model.parameters()}

    def keep(value: Tensor) -> Tensor:
        """Note the memory of a tensor that is no weight."""
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


@dataclasses.dataclass
class Calibration:
    """A dense network with the images and the options of its compression."""

    #: A copy of the user's network, in the mode ``eval``.
    dense: nn.Module
    #: Batches to calibrate on.
    batches: Sequence[Any]
    #: Batches that agreement is measured on.
    held_out: Sequence[Any]
    #: Takes a network and a batch; returns the outputs that agreement is told of.
    forward: Forward
    #: The options, with a number for ``memory``.
    settings: CompressOptions
    #: Finished steps of an earlier call; this call adds its own. None: nothing is kept.
    done: CompressProgress | None
    #: Number of held-out images that are also calibration images.
    seen: int

    @cached_property
    def compared(self) -> Forward:
        """Gives the outputs that units are chosen for, see :attr:`CompressOptions.compare`."""
        chosen = self.settings
        of_backbone = chosen.scope == chosen.compare == 'backbone' and not chosen.logits
        if of_backbone and is_dense_task(self.dense):
            return partial(backbone_outputs, self.forward)
        return self.forward

    @cached_property
    def survey(self) -> Survey:
        """The :func:`survey` of the network, made when it is first asked for."""
        return survey(self.dense, self.batches, self.compared)

    def find_input_shape(self) -> tuple[Sequence[int], str]:
        """(C, H, W) of the image that MACs are for, and its origin in words.

        It is ``input_shape`` of the options, with ``''`` for the origin; without one it is the size
        of the images, of several sizes the largest.

        Raises:
            ValueError: There is no ``input_shape``, and batches are no images.
        """
        if self.settings.input_shape is not None:
            return self.settings.input_shape, ''
        shapes = image_shapes(self.batches)
        if not shapes:
            raise ValueError('expected `input_shape` (C, H, W), which MACs are counted for, beside '
                             f'batches whose first tensor is no images (N, C, H, W), found '
                             f'{_describe(self.batches[0])} and none')
        return max(sorted(shapes), key=math.prod), \
            'the largest of the images' if len(shapes) > 1 else 'the size of the images'

    @cached_property
    def size(self) -> int:
        """Images of a batch, equal in all processes; so small that each process has a batch."""
        fitting = ask_first_process(lambda: self.survey.batch(self.settings.memory))
        return max(min(fitting, count_images(self.batches) // count_processes()), 1)


def copy_network(model: nn.Module) -> nn.Module:
    """A deep copy, in its mode, of the network inside wrappers (parallel, compiled).

    Raises:
        ValueError: The model is no network with weights, or cannot be copied.
    """
    if not isinstance(model, nn.Module) or next(model.parameters(), None) is None:
        raise ValueError('expected a network with weights, an `nn.Module`, found a '
                         f'`{type(model).__name__}`')
    model = unwrap(model)
    check_layers(model)
    try:
        return copy.deepcopy(model)
    except Exception as error:  # of whatever hangs on a module
        raise ValueError(
            f'expected a network `{type(model).__name__}` that can be copied, '
            f'found `{_uncopied(model)}` '
            'that cannot, such as a result of a forward pass: delete it '
            f'({type(error).__name__}: {one_line(error, 200)})') from error


def _uncopied(model: nn.Module) -> str:
    """Path of the attribute that stands in the way of a copy."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            try:
                copy.deepcopy(None if name == '_modules' else value)  # they follow
            except Exception:
                return f'{path}.{name}'.lstrip('.')
    return type(model).__name__


def prepare_calibration(model: nn.Module, images: Any, held_out: Any, forward: Forward,
                        done: CompressProgress | None, settings: CompressOptions) -> Calibration:
    """Copy a user's network, and split the images into batches and held-out batches.

    Args:
        model (nn.Module): The user's network. It is not changed.
        images (Tensor | Sequence): Calibration images (N, 3, H, W), or batches.
        held_out (Tensor | Sequence, optional): Images to compare on; of None the last tenth of
            ``images``.
        forward (Callable): Takes a network and a batch; returns the outputs that are to agree.
        done (CompressProgress, optional): Progress of an interrupted call, or None.
        settings (CompressOptions): Options; without ``memory`` half of the free memory is taken.

    Raises:
        ValueError: The network cannot be copied or has weights that are not finite, or there are
            no images.
    """
    dense = copy_network(model)
    dense.eval()  # `eval` of mmpretrain's backbones returns None
    check_finite(dict(dense.named_parameters()), 'weights')
    batches, held_out = split_batches(images, held_out)
    if settings.memory is None:
        device = next(dense.parameters()).device
        # the processes of a machine share its memory, but each has a GPU
        sharing = int(os.environ.get('LOCAL_WORLD_SIZE', 1)) if device.type == 'cpu' else 1
        memory = ask_first_process(lambda: free_memory(device) // (2 * sharing))
        settings = dataclasses.replace(settings, memory=memory)
    if len(batches) < count_processes():
        raise ValueError(f'expected at least one batch or image for each of {count_processes()} '
                         f'processes, found {len(batches)} to calibrate on')
    seen = count_seen(batches, held_out)
    if settings.augment:
        batches = augment_images(batches, settings.least_images, settings.seed)
    return Calibration(dense, batches, held_out, forward, settings, done, seen)


@torch.no_grad()
def look_at(calibration: Calibration) -> None:
    """Run the first batch of the calibration and of the held-out images.

    Raises:
        ValueError: The network does not take a batch, or gives no tensors of floating point.
    """
    for batches in (calibration.batches, calibration.held_out):
        model, batch = calibration.dense, batches[0]
        try:
            outputs = calibration.forward(model, batch)
        except Exception as error:
            raise ValueError(
                f'expected a network `{type(model).__name__}` that takes the first batch, '
                f'{_describe(batch)}, found that it raised {type(error).__name__} '
                f'({one_line(error)}): {_part_to_take(calibration, batch)}give '
                'images (N, 3, H, W), such as `[images for images, *_ in loader]`, or a `forward` '
                'that takes such a batch') from error
        if not any(tensor.numel() for tensor in flat_tensors(outputs)):
            raise ValueError('expected outputs with tensors of floating point, found '
                             f'{_describe(outputs)}: give `forward=lambda model, batch: ...` that '
                             'returns those that matter')


def _part_to_take(calibration: Calibration, batch: Any) -> str:
    """The start of an advice: the part of a network that takes the batch, or ``''``.

    It is the child with the most weights that takes the batch, as the image encoder of a network of
    images and texts does; it has at least a fifth of the network's weights.
    """
    sizes = {name: count_params(child) for name, child in calibration.dense.named_children()}
    least = count_params(calibration.dense) / 5
    for name in sorted(sizes, key=sizes.get, reverse=True):
        if sizes[name] < least:
            break
        with suppress(Exception):  # of whatever a part does with a batch that is not its own
            if flat_tensors(calibration.forward(getattr(calibration.dense, name), batch)):
                return f'compress its part `model.{name}`, which takes this batch, or '
    return ''


def _describe(value: Any) -> str:
    """A batch or output in words: types and shapes."""
    if isinstance(value, Tensor):
        return f'a tensor {tuple(value.shape)}'
    if isinstance(value, Mapping):
        keys = ', '.join(f'`{key}`' for key in list(value)[:4])
        return f'an object of type `{type(value).__name__}` with {keys}'
    if isinstance(value, (list, tuple)):
        kind = 'list' if isinstance(value, list) else 'tuple'
        return f'a {kind} of ' + ', '.join(map(_describe, value[:3])) \
            if len(value) else f'an empty {kind}'
    return f'an object of type `{type(value).__name__}`'
