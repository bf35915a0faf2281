"""Channels taken out of a tensor, and put back at their places."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
    if torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting():
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
