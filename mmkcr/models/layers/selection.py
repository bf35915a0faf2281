"""Selected channels put back in the form that fits where the model runs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmkcr.models.execution import exporting


def spread(out: Tensor, kept: Tensor, total: int, dim: int = -1) -> Tensor:
    """Kept channels to all channels, zero where not kept, in ordinary operators.

    Args:
        out (Tensor): With ``len(kept)`` channels along ``dim``.
        kept (Tensor): Their places, int64, ascending.
        total (int): All channels.
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: With ``total`` channels along ``dim``.
    """
    dim = dim % out.ndim
    inverse = torch.full((total, ), len(kept))
    inverse[kept] = torch.arange(len(kept))
    padding = (0, 0) * (out.ndim - 1 - dim) + (0, 1)
    return F.pad(out, padding).index_select(dim, inverse)


def widen(x: Tensor, kept: Tensor, total: int, dim: int = -1) -> Tensor:
    """As :func:`spread`, by a scatter where that has a good form.

    Args:
        x (Tensor): With ``len(kept)`` channels along ``dim``.
        kept (Tensor): Their places, int64, ascending.
        total (int): All channels.
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: With ``total`` channels along ``dim``.
    """
    if exporting():
        return spread(x, kept, total, dim)
    shape = list(x.shape)
    shape[dim] = total
    return x.new_zeros(shape).index_copy(dim % x.ndim, kept, x)
