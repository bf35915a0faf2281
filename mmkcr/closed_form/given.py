"""What a user gives is looked at before work begins: the network's layers, and the first batch."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core.finite import check_finite
from mmkcr.core.forward import flat_tensors
from mmkcr.models.sites.base import check_layers
from mmkcr.models.tasks import unwrap
from .batches import split_batches
from .options import Forward


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


def taken(model: nn.Module, images: Any,
          held_out: Any) -> tuple[nn.Module, Sequence[Any], Sequence[Any]]:
    """A user's network, copied, in evaluation mode, batches of images and held-out batches.

    Raises:
        ValueError: As in :func:`copied` and :func:`~mmkcr.closed_form.batches.split_batches`, or
            weights that are not finite.
    """
    dense = copied(model)
    dense.eval()
    check_finite(dict(dense.named_parameters()), 'weights')
    return dense, *split_batches(images, held_out)


@torch.no_grad()
def look_at(model: nn.Module, batches: Any, forward: Forward) -> None:
    """Run the first batch once, and refuse one or an output that nothing can be learned from.

    Args:
        model (nn.Module): In evaluation mode.
        batches (Sequence): What ``forward`` takes.
        forward (Callable): Takes the model and a batch.

    Raises:
        ValueError: It says what was found, and what would work.
    """
    batch = batches[0]
    try:
        outputs = forward(model, batch)
    except Exception as error:
        raise ValueError(f'expected a `{type(model).__name__}` that takes the first batch, '
                         f'{_told(batch)}, found that it raised {type(error).__name__} '
                         f'({" ".join(str(error).split()):.300}): give images (N, 3, H, W) of the '
                         "weights' type, such as `[images for images, *_ in loader]`, or a "
                         '`forward` that takes such a batch') from error
    if not any(tensor.numel() for tensor in flat_tensors(outputs)):
        raise ValueError('expected outputs with tensors of floating point, found '
                         f'{_told(outputs)}: give `forward=lambda model, batch: ...` that returns '
                         'those that matter')


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
