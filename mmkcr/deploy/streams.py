"""Permutations of residual streams, after which selections of channels are contiguous ranges.

The order of a stream's channels means nothing inside a network: if all layers that write or read
the stream are permuted in the same way, no output changes. Runtimes slice a contiguous range much
faster than they gather channels. With one order the selections of any two blocks can both be
ranges, and those of more blocks only if they overlap as intervals do (such as nested ones).
"""

from typing import List, Optional, Sequence, Set

import torch
from torch import Tensor, nn

from mmkcr.core import Unsupported
from mmkcr.core.axes import slice_axes
from mmkcr.models.adapters import mlp_views, stream_views
from mmkcr.models.adapters.views import MLPView, StreamView, of_library, shared_parameters
from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.selection import Put, is_range
from mmkcr.models.sites.mlp_channels import MLPChannels

#: Steps after which the search for an order gives up.
_STEPS = 10_000


def permute_streams(model: nn.Module) -> int:
    """Permute the streams of a subnet's hosts so that more selections of channels are ranges.

    Features that leave a host keep their order. A stream is left alone where that gains nothing,
    and where something may read it that its adapter does not know.

    Args:
        model (nn.Module): Any model; changed in place. Hosts without an adapter for their streams
            are left alone.

    Returns:
        int: Number of streams that were permuted.
    """
    count = 0
    for host in list(model.modules()):
        try:
            streams = stream_views(host)
        except Unsupported:
            continue
        count += sum(_permute(host, stream) for stream in streams if _is_known(host, stream))
    return count


def _is_known(host: nn.Module, stream: StreamView) -> bool:
    """Whether the adapter lists all that reads or writes a stream, each entry once."""
    # classes of others, such as adapters for fine-tuning, may add to the stream
    if not all(of_library(module) or type(module).__module__.startswith(('torch.nn.', 'mmengine.'))
               for module in host.modules()):
        return False
    shared = shared_parameters(host)
    # layers around layers have no weight of their own (LoRA); an identity has nothing to permute
    return not any(id(axis.value) in shared or axis.name == 'weight' and not (
        hasattr(axis.module, 'weight') or isinstance(axis.module, nn.Identity))
        for axis in stream.axes(host))


def _permute(host: nn.Module, stream: StreamView) -> bool:
    norms = [getattr(owner, name) for owner, name, _ in stream.norms(host)]
    sliced = [mlp for mlp in mlp_views(host) if isinstance(mlp, MLPView) and mlp.norm and any(
        host.get_submodule(mlp.norm) is norm for norm in norms if type(norm) is SlicedLayerNorm)]
    kept = [host.get_submodule(mlp.norm).kept for mlp in sliced]
    order = range_order(kept, stream.total)
    before, places = sum(map(is_range, kept)), order.argsort()
    if sum(is_range(places[one].sort().values) for one in kept) == before:
        return False
    own = set()  # layers that have the channels of a selection only
    for mlp, one in zip(sliced, kept):
        axes = MLPChannels.of(host, mlp).axes()
        slice_axes(axes, places[one].argsort())
        own.update(axis.module for axis in axes)
        _select(host, mlp, places[one].sort().values, stream.total)
    slice_axes([axis for axis in stream.axes(host) if axis.module not in own], order)
    _restore(host, stream, places)
    return True


def _select(host: nn.Module, mlp: MLPView, kept: Tensor, total: int) -> None:
    """Let an MLP read and write other channels of its stream."""
    host.get_submodule(mlp.norm).kept = kept
    host.set_submodule(f'{mlp.after}.1', Put(kept, total))


def _restore(host: nn.Module, stream: StreamView, places: Tensor) -> None:
    """Give the features of a stream their own order where they leave the host."""

    def own_order(feature: Tensor, dim: int) -> Tensor:
        # OpenVINO 2026.4 moves a gather of maps' channels into convolutions, the wrong way round
        if dim == 1:
            return feature.permute(0, 2, 3, 1).index_select(-1, places).permute(0, 3, 1, 2)
        return feature.index_select(dim, places)

    # before hooks of others, which know the features in their own order
    host.register_forward_hook(
        lambda _, __, found: stream.change_outputs(host, found, own_order), prepend=True)


def range_order(selections: Sequence[Tensor], total: int) -> Tensor:
    """An order of channels in which as many selections as possible are contiguous ranges.

    The choice is greedy: from each selection on, all others are added in turn as long as there is
    an order for all; the largest choice is taken.

    Args:
        selections (Sequence[Tensor]): Positions of the selected channels, int64.
        total (int): Number of channels.

    Returns:
        Tensor: The channels in their new order, int64, shape (total, ).
    """
    member = torch.zeros(len(selections), total, dtype=torch.bool)
    for row, one in zip(member, selections):
        row[one.cpu()] = True
    best: List[int] = []
    ranks = torch.zeros(total, dtype=torch.int64)
    for first in range(len(selections)):
        chosen: List[int] = []
        for one in [first, *(i for i in range(len(selections)) if i != first)]:
            found = _ranks(member[[*chosen, one]])
            if found is not None:
                chosen.append(one)
                if len(chosen) > len(best):
                    best, ranks = list(chosen), found
        if len(best) == len(selections):
            break
    return torch.sort(ranks, stable=True).indices


def _ranks(member: Tensor) -> Optional[Tensor]:
    """Rank of every channel in an order that makes all selections ranges, if one is found.

    Args:
        member (Tensor): Whether each selection has each channel, bool, (selections, channels).
    """
    # channels with one pattern of selections stay together, so only the patterns are arranged
    distinct, which = torch.unique(member, dim=1, return_inverse=True)
    patterns = [sum(1 << bit for bit, set_ in enumerate(column) if set_)
                for column in distinct.T.tolist()]
    order = _arranged(set(patterns) - {0}, len(member))
    if order is None:
        return None
    ranks = {pattern: place for place, pattern in enumerate([*order, 0])}
    return torch.tensor([ranks[pattern] for pattern in patterns])[which]


def _arranged(patterns: Set[int], bits: int) -> Optional[List[int]]:
    """An order of patterns in which every bit is set in one run of neighbours, if one is found."""
    if len(patterns) > 2 * bits:  # every run begins once and ends once
        return None
    steps = 0

    def extend(order: List[int], closed: int) -> Optional[List[int]]:
        nonlocal steps
        if len(order) == len(patterns):
            return order
        steps += 1
        last = order[-1] if order else 0
        for pattern in sorted(patterns.difference(order)):
            ended = closed | last & ~pattern  # runs that end before this pattern
            if steps <= _STEPS and not pattern & ended:
                found = extend([*order, pattern], ended)
                if found is not None:
                    return found
        return None

    return extend([], 0)
