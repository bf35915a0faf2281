"""Channels taken and put back in the form that fits where the model runs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmkcr.models.execution import eager_inference, eager_on_cpu, exporting


def take(x: Tensor, kept: Tensor, dim: int = -1) -> Tensor:
    """The kept channels.

    In eager mode on a CPU, where the channels lie together, ``gather`` with an expanded index
    takes a third of the time of ``index_select`` along them, and keeps their layout. A compiler
    or ONNX Runtime fuses the other form better.

    Args:
        x (Tensor): With all channels along ``dim``.
        kept (Tensor): Their places, int64, ascending.
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: With ``len(kept)`` channels along ``dim``; ``x`` itself if these are all.
    """
    if not eager_on_cpu(x):
        return x.index_select(dim, kept)
    if len(kept) == x.shape[dim]:
        return x
    last = x.movedim(dim, -1)
    if not last.is_contiguous():
        return x.index_select(dim, kept)
    rows = last.view(last.shape[:-1].numel(), last.shape[-1])
    rows = rows.gather(1, kept.expand(len(rows), -1))
    return rows.view(*last.shape[:-1], len(kept)).movedim(-1, dim)


def add(x: Tensor, kept: Tensor, out: Tensor, dim: int = -1) -> Tensor:
    """Add to the kept channels; in eager inference on a CPU **in place**.

    Args:
        x (Tensor): With all channels along ``dim``.
        kept (Tensor): Their places, int64, ascending.
        out (Tensor): What to add, with ``len(kept)`` channels along ``dim``.
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: Of the shape of ``x``.
    """
    out = out.to(x.dtype)
    if exporting():
        return x + spread(out, kept, x.shape[dim], dim)
    if not eager_inference(x):
        return x.index_add(dim, kept, out)
    if len(kept) == x.shape[dim]:
        return x.add_(out)
    last = x.movedim(dim, -1)
    if last.is_contiguous():  # an index along another axis of it goes by columns
        last.index_add_(-1, kept, out.movedim(dim, -1).contiguous())
        return x
    return x.index_add_(dim, kept, out)


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
    last = x.movedim(dim, -1)
    if eager_on_cpu(x) and last.is_contiguous():
        wide = x.new_zeros(*last.shape[:-1], total)
        return wide.scatter_(-1, kept.expand(last.shape), last).movedim(-1, dim)
    shape = list(x.shape)
    shape[dim] = total
    return x.new_zeros(shape).index_copy(dim % x.ndim, kept, x)
