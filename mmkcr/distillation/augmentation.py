"""Augmentation: every position of a distillation has one batch and one draw."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .options import DistilOptions


class AugmentedBatches:
    """Augmented batches by position, on a device, so that a GPU augments.

    The batch at a position, and all that is drawn for it, depend on the position alone: neither on
    the number of processes, nor on where a run was stopped.

    Args:
        batches (Sequence): Batches of images, see :func:`augment`.
        settings (DistilOptions): Seed, and whether to augment.
        device (torch.device): Device of the batches that are returned.
    """

    def __init__(self, batches: Sequence[Any], settings: DistilOptions,
                 device: torch.device) -> None:
        self._batches, self._settings, self._device = batches, settings, device

    def __getitem__(self, position: int) -> Any:
        epoch, place = divmod(position, len(self._batches))
        draw = torch.Generator().manual_seed(self._settings.seed * 7919 + epoch)
        place = int(torch.randperm(len(self._batches), generator=draw)[place])
        batch = move_batch(self._batches[place], self._device)
        if self._settings.augment:
            draw.manual_seed((self._settings.seed + 1) * 1_000_003 + position)
            batch = augment(batch, draw)
        return batch


def move_batch(batch: Any, device: torch.device) -> Any:
    """A batch with all that has a method ``to``, in nested dicts and sequences, on a device."""
    if hasattr(batch, 'to'):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {key: move_batch(value, device) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        parts = [move_batch(part, device) for part in batch]
        return type(batch)(*parts) if hasattr(batch, '_fields') else type(batch)(parts)
    return batch


def augment(batch: Any, draw: torch.Generator) -> Any:
    """Crop, mirror and recolour the images of a batch, and mix the images of every other batch.

    Args:
        batch (Any): Images (N, C, H, W), or a dict that has them under ``'inputs'``. A batch of
            another form is left as it is.
        draw (torch.Generator): Generator on the CPU of all random numbers.
    """
    if isinstance(batch, Mapping) and isinstance(batch.get('inputs'), Tensor):
        return dict(batch, inputs=augment(batch['inputs'], draw))
    if not isinstance(batch, Tensor) or batch.ndim != 4 or not batch.is_floating_point():
        return batch

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return (torch.rand(len(batch), *shape, generator=draw) * (high - low) + low).to(batch)

    scale = uniform(0.35, 1.)**0.5
    mirror = uniform(-1, 1).sign()
    theta = torch.zeros(len(batch), 2, 3).to(batch)
    theta[:, 0, 0], theta[:, 1, 1] = scale * mirror, scale
    theta[:, :, 2] = uniform(-1, 1, 2) * (1 - scale)[:, None]
    out = F.grid_sample(batch, F.affine_grid(theta, batch.shape, align_corners=False),
                        padding_mode='border', align_corners=False)
    mean = out.mean((2, 3), keepdim=True)
    gain, shift = uniform(0.6, 1.4, 1, 1, 1), uniform(-0.3, 0.3, out.shape[1], 1, 1)
    out = (out - mean) * gain + mean + shift
    if torch.rand((), generator=draw) < 0.5:
        share = uniform(0., 0.5, 1, 1, 1)
        out = out * (1 - share) + out.roll(1, 0) * share
    return out
