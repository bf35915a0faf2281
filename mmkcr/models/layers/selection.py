"""Layers that take channels out of a tensor, and put them back at their positions.

The fastest implementation depends on the runtime. So :class:`Take` and :class:`Put` have a *form*:

- ``'scatter'``: ``index_select`` and ``index_copy``, the fastest form in PyTorch; the default.
- ``'gather'``: both gather; ``Put`` gathers from channels that are padded with one zero. Runtimes
  gather faster than they scatter.
- ``'elements'``: as ``'gather'``, with an index for every number. This is for runtimes that copy
  each gathered slice on its own, even if it is one number.
- ``'grouped'``: rows of ``group`` neighbours are gathered, for selections of whole groups.

Contiguous channels are sliced and padded in every form.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def exporting() -> bool:
    """Whether a graph is being recorded for another runtime."""
    return torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()


def put(x: Tensor, kept: Tensor, total: int, dim: int = -1) -> Tensor:
    """Put kept channels at their positions among all channels, with zeros elsewhere.

    Args:
        x (Tensor): With K channels along ``dim``.
        kept (Tensor): Positions of the channels, (K,), int64, ascending.
        total (int): Number of all channels.
        dim (int): Dimension of the channels. Defaults to -1.
    """
    if exporting():
        return _pad_zeros(x, dim, 0, 1).index_select(dim, _sources(kept, total))
    # zeros by padding nothing, as a graph does not know the shape
    return _pad_zeros(x.detach().narrow(dim, 0, 0), dim, 0, total).index_copy(dim, kept, x)


def _sources(kept: Tensor, total: int) -> Tensor:
    """Position of every channel among the K kept ones; K, the padded zero, for a dropped one."""
    sources = torch.full((total, ), len(kept), device=kept.device)
    sources[kept] = torch.arange(len(kept), device=kept.device)
    return sources


def _pad_zeros(x: Tensor, dim: int, before: int, after: int) -> Tensor:
    # `F.pad` lists the last dimension first
    behind = x.ndim - 1 - dim if dim >= 0 else -1 - dim
    return F.pad(x, (0, 0) * behind + (before, after))


def largest_group(kept: Tensor, total: int) -> int:
    """The largest power of two such that aligned groups of channels are kept or dropped as one."""
    mask = torch.zeros(total, dtype=torch.bool)
    mask[kept.cpu()] = True
    borders = (mask[1:] != mask[:-1]).nonzero().flatten() + 1  # of kept and dropped channels
    common = math.gcd(total, *borders.tolist())
    return common & -common  # the largest power of two that divides it


class _Selection(nn.Module):
    """Channels of a tensor, as a layer; arguments are those of :func:`put`."""

    form: str = 'scatter'
    group: int = 1

    def __init__(self, kept: Tensor, total: int, dim: int = -1) -> None:
        super().__init__()
        self.total, self.dim = total, dim
        # not in the state_dict: the structure has the kept units
        self.register_buffer('kept', kept.clone(), persistent=False)
        self.first, self.count = int(kept[0]) if len(kept) else 0, len(kept)
        self.contiguous = len(kept) == 0 or int(kept[-1]) + 1 - self.first == len(kept)

    def set_form(self, form: str, group: int = 1) -> None:
        """Compute in another form of this module, 'grouped' by rows of ``group`` channels.

        The group divides :func:`largest_group`.
        """
        self.form, self.group = form, group
        # whole groups are kept, so every group-th kept channel begins a row
        self.register_buffer('index', self._index(self.kept[::group] // group,
                                                  self.total // group), persistent=False)

    def _index(self, kept: Tensor, total: int) -> Tensor:
        return kept

    def _gather(self, x: Tensor) -> Tensor:
        """Gather the entries of the index along the dimension."""
        dim = self.dim % x.ndim
        if self.form == 'grouped':
            rows = x.unflatten(dim, (-1, self.group))
            return rows.index_select(dim, self.index).flatten(dim, dim + 1)
        if self.form == 'elements' and dim == x.ndim - 1 > 0:
            rows = x.flatten(0, -2)  # (tokens of all images, channels)
            picked = rows.gather(1, self.index.expand(rows.shape[0], -1))
            return picked.reshape(*x.shape[:-1], len(self.index))
        return x.index_select(dim, self.index)


class Take(_Selection):
    """The kept channels of a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        """All channels to the kept ones."""
        if self.contiguous:
            return x.narrow(self.dim, self.first, self.count)
        return x.index_select(self.dim, self.kept) if self.form == 'scatter' else self._gather(x)


class Put(_Selection):
    """Channels at their positions among all channels, and zeros elsewhere."""

    def _index(self, kept: Tensor, total: int) -> Tensor:
        return _sources(kept, total)

    def forward(self, x: Tensor) -> Tensor:
        """See :func:`put`."""
        if self.contiguous:
            return _pad_zeros(x, self.dim, self.first, self.total - self.first - self.count)
        if self.form == 'scatter':
            return put(x, self.kept, self.total, self.dim)
        return self._gather(_pad_zeros(x, self.dim, 0, self.group))  # zeros for dropped channels
