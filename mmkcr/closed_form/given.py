"""What a user gives: it is looked at before work begins, and goes through it as one record."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core.checks import check_finite
from mmkcr.core.forward import flat_tensors
from mmkcr.core.machine import free_memory
from mmkcr.models.sites.base import check_layers
from mmkcr.models.tasks import unwrap
from .batches import count_seen, split_batches
from .options import CompressOptions, Forward
from .progress import CompressProgress
from .survey import Survey, survey


@dataclasses.dataclass
class Calibration:
    """A dense network with the images that it is compressed on, and how that is to be done.

    Args:
        dense (nn.Module): In evaluation mode, and nobody else's.
        batches (Sequence): Of calibration.
        held_out (Sequence): That agreement is measured on.
        forward (Callable): Takes a model and a batch; returns the outputs that are to agree.
        settings (CompressOptions): With a number for ``memory``.
        done (CompressProgress, optional): What an earlier call finished; gets what this one does.
        seen (int): How many of the held-out images are among those of calibration.
    """

    dense: nn.Module
    batches: Sequence[Any]
    held_out: Sequence[Any]
    forward: Forward
    settings: CompressOptions
    done: CompressProgress | None
    seen: int

    @cached_property
    def survey(self) -> Survey:
        """What the first images tell of the network."""
        return survey(self.dense, self.batches, self.forward)

    @property
    def size(self) -> int:
        """Images of a batch."""
        return self.survey.batch(self.settings.memory)


def copied(model: nn.Module) -> nn.Module:
    """A copy of the network inside wrappers, if its layers are ordinary ones.

    Args:
        model (nn.Module): Possibly in ``DataParallel``, ``DistributedDataParallel`` or compiled.

    Returns:
        nn.Module: A deep copy, in the same mode.

    Raises:
        ValueError: There is no network with weights, a layer does not own its weight, or the
            network cannot be copied.
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
            f'expected a `{type(model).__name__}` that can be copied, found `{_uncopied(model)}` '
            'that cannot, such as a result of a forward pass: delete it '
            f'({type(error).__name__}: {" ".join(str(error).split()):.200})') from error


def _uncopied(model: nn.Module) -> str:
    """Path of the attribute that stands in the way of a copy."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            try:
                copy.deepcopy(None if name == '_modules' else value)  # they follow
            except Exception:
                return f'{path}.{name}'.lstrip('.')
    return type(model).__name__


def taken(model: nn.Module, images: Any, held_out: Any, forward: Forward,
          done: CompressProgress | None, options: Mapping[str, Any]) -> Calibration:
    """A user's network, copied, with batches of images and held-out batches.

    Raises:
        ValueError: As in :func:`copied`, :func:`~mmkcr.closed_form.batches.split_batches` and
            :func:`~mmkcr.closed_form.batches.count_seen`, weights that are not finite, or an
            option out of range.
    """
    dense = copied(model)
    dense.eval()
    check_finite(dict(dense.named_parameters()), 'weights')
    batches, held_out = split_batches(images, held_out)
    settings = CompressOptions(**options)
    if settings.memory is None:
        free = free_memory(next(dense.parameters()).device)
        settings = dataclasses.replace(settings, memory=free // 2)
    return Calibration(dense, batches, held_out, forward, settings, done,
                       count_seen(batches, held_out))


@torch.no_grad()
def look_at(calibration: Calibration) -> None:
    """Run the first batch of each kind, and refuse what nothing can be learned from.

    Raises:
        ValueError: It says what was found, and what would work.
    """
    for batches in (calibration.batches, calibration.held_out):
        model, batch = calibration.dense, batches[0]
        try:
            outputs = calibration.forward(model, batch)
        except Exception as error:
            raise ValueError(
                f'expected a `{type(model).__name__}` that takes the first batch, {_told(batch)}, '
                f'found that it raised {type(error).__name__} '
                f'({" ".join(str(error).split()):.300}): give images (N, 3, H, W) of the weights\' '
                'type, such as `[images for images, *_ in loader]`, or a `forward` that takes such '
                'a batch') from error
        if not any(tensor.numel() for tensor in flat_tensors(outputs)):
            raise ValueError('expected outputs with tensors of floating point, found '
                             f'{_told(outputs)}: give `forward=lambda model, batch: ...` that '
                             'returns those that matter')


def _told(value: Any) -> str:
    """A batch or output in words: types and shapes."""
    if isinstance(value, Tensor):
        return f'a tensor {tuple(value.shape)}'
    if isinstance(value, Mapping):
        return f'a `{type(value).__name__}` with {", ".join(f"`{key}`" for key in list(value)[:4])}'
    if isinstance(value, (list, tuple)):
        return f'a {type(value).__name__} of ' + ', '.join(map(_told, value[:3])) \
            if len(value) else f'an empty {type(value).__name__}'
    return f'a `{type(value).__name__}`'
