"""What a user gives is looked at before work begins: the network's layers, and the first batch."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

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
    if not isinstance(model, nn.Module):
        raise ValueError(f'expected a network, an `nn.Module`, found a `{type(model).__name__}`')
    if next(model.parameters(), None) is None:
        raise ValueError(f'expected a network with weights, found a `{type(model).__name__}` '
                         'without parameters')
    model = unwrap(model)
    check_layers(model)
    try:
        return copy.deepcopy(model)
    except Exception as error:  # of whatever hangs on a module
        kept = next(_kept_maps(model), '')
        reason = f'tensors of a forward pass in `{kept}`: set it to None' if kept else \
            f'{type(error).__name__}: {" ".join(str(error).split()):.200}'
        raise ValueError(f'expected a `{type(model).__name__}` that can be copied, found {reason}'
                         ) from error


def _kept_maps(model: nn.Module) -> Iterator[str]:
    """Attributes with tensors that a forward pass has left, which cannot be copied."""
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in ('_parameters', '_buffers', '_modules') and any(
                    tensor.grad_fn is not None for tensor in flat_tensors(value)):
                yield f'{path}.{name}'.lstrip('.')


def _check_images(images: Any) -> None:
    """Refuse a data set, whose items are no batches."""
    if isinstance(images, Dataset):
        raise ValueError(f'expected images (N, 3, H, W) or a list of batches, found a data set '
                         f'`{type(images).__name__}`: give `torch.stack([image for image, *_ in '
                         'data])`, or `[images for images, *_ in loader]`')


def taken(model: nn.Module, images: Any,
          held_out: Any) -> tuple[nn.Module, Sequence[Any], Sequence[Any]]:
    """A user's network, copied, in evaluation mode, and images in batches; all are looked at.

    Args:
        model (nn.Module): Any.
        images (Tensor | Sequence): For the calibration.
        held_out (Tensor | Sequence, optional): See :func:`~mmkcr.apis.compress`.

    Returns:
        tuple: The copy, batches, held-out batches.

    Raises:
        ValueError: As in :func:`copied` and :func:`~mmkcr.closed_form.batches.split_batches`; a
            data set, weights that are not finite, or images of another precision than they.
    """
    for given in (images, held_out):
        _check_images(given)
    dense = copied(model)
    dense.eval()
    check_finite(dict(dense.named_parameters()), 'weights')
    batches, held_out = split_batches(images, held_out)
    wanted = next(dense.parameters()).dtype
    for batch in (batches[0], held_out[0]):
        if isinstance(batch, Tensor) and batch.is_floating_point() and batch.dtype != wanted:
            raise ValueError(f'expected images of {wanted}, as the weights of '
                             f'`{type(dense).__name__}` are, found {batch.dtype}: give '
                             f'`model.float()` or `images.to({wanted})`')
    return dense, batches, held_out


@torch.no_grad()
def look_at(model: nn.Module, batches: Any, forward: Forward, default: bool) -> None:
    """Run the first batch once, and refuse one or an output that nothing can be learned from.

    Args:
        model (nn.Module): In evaluation mode.
        batches (Sequence): What ``forward`` takes.
        forward (Callable): Takes the model and a batch.
        default (bool): Whether it only calls the model.

    Raises:
        ValueError: It says what was found, and what would work.
    """
    batch = batches[0]
    advice = _advice(batch) if default else ''
    if advice:
        raise ValueError(f'expected batches that the model takes, such as tensors (N, 3, H, W), '
                         f'found {advice}')
    try:
        outputs = forward(model, batch)
    except Exception as error:
        raise ValueError(f'expected a `{type(model).__name__}` that takes the first batch, '
                         f'{_told(batch)}, found that it raised {type(error).__name__}: '
                         f'{" ".join(str(error).split()):.300}') from error
    if not any(tensor.numel() for tensor in flat_tensors(outputs)):
        raise ValueError('expected outputs with tensors of floating point, found '
                         f'{_told(outputs)}: give `forward=lambda model, batch: ...` that returns '
                         'those that matter')


def _advice(batch: Any) -> str:
    """What a batch is that a model cannot be called with, and what to give instead; or ''."""
    if isinstance(batch, Tensor) and batch.ndim == 3:
        return f'one image {tuple(batch.shape)} in place of each: give `torch.stack(images)`'
    if isinstance(batch, (list, tuple)) and len(batch) and isinstance(batch[0], Tensor):
        first = batch[0]
        if first.ndim == 3:
            return f'pairs of {_told(batch)}: give `torch.stack([image for image, *_ in data])`'
        if first.ndim == 4:
            return f'{_told(batch)}: give `[images for images, *_ in loader]`'
    if isinstance(batch, Mapping):
        return (f'{_told(batch)}: give `forward=lambda model, batch: model(**batch)`, or the '
                'tensors alone')
    if not isinstance(batch, Tensor):
        return f'{_told(batch)}: give its tensors, or a `forward` that takes it'
    return ''


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
