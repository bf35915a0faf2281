"""Channels taken out of a tensor, and put back at their places."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def exporting() -> bool:
    """Whether a graph is being recorded for another runtime."""
    return torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()


def take(x: Tensor, kept: Tensor, dim: int = -1) -> Tensor:
    """The kept channels.

    Args:
        x (Tensor): With all channels along ``dim``.
        kept (Tensor): Their places, int64, ascending, shape (K,).
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: With K channels along ``dim``.
    """
    return x.index_select(dim, kept)


def put(x: Tensor, kept: Tensor, total: int, dim: int = -1) -> Tensor:
    """Kept channels at their places among all channels, zero elsewhere.

    Args:
        x (Tensor): With K channels along ``dim``.
        kept (Tensor): Their places, int64, ascending, shape (K,).
        total (int): All channels.
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: With ``total`` channels along ``dim``.
    """
    dim = dim % x.ndim
    if exporting():
        # runtimes gather faster than they scatter: place K holds the zero that is padded on
        inverse = torch.full((total, ), len(kept))
        inverse[kept] = torch.arange(len(kept))
        padding = (0, 0) * (x.ndim - 1 - dim) + (0, 1)
        return F.pad(x, padding).index_select(dim, inverse)
    shape = list(x.shape)
    shape[dim] = total
    return x.new_zeros(shape).index_copy(dim, kept, x)


def add(x: Tensor, kept: Tensor, out: Tensor, dim: int = -1) -> Tensor:
    """Add ``out`` (K channels along ``dim``) to the kept channels of ``x``."""
    return x + put(out.to(x.dtype), kept, x.shape[dim], dim)


class Take(nn.Module):
    """The kept channels of a tensor.

    Args:
        kept (Tensor): Their places, int64, ascending, shape (K,).
        dim (int): Of the channels. Defaults to -1.
    """

    def __init__(self, kept: Tensor, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer('kept', kept.clone(), persistent=False)  # that of the site is saved

    def forward(self, x: Tensor) -> Tensor:
        """See :func:`take`."""
        return take(x, self.kept, self.dim)

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f'kept={len(self.kept)}, dim={self.dim}'


class Put(Take):
    """Channels at their places among all channels, zero elsewhere.

    Args:
        kept (Tensor): Their places, int64, ascending, shape (K,).
        total (int): All channels.
        dim (int): Of the channels. Defaults to -1.
    """

    def __init__(self, kept: Tensor, total: int, dim: int = -1) -> None:
        super().__init__(kept, dim)
        self.total = total

    def forward(self, x: Tensor) -> Tensor:
        """See :func:`put`."""
        return put(x, self.kept, self.total, self.dim)

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f'{super().extra_repr()}, total={self.total}'
