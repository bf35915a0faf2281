"""Removing what is constant in a mask on queries and keys (DCS)."""

from typing import Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn

from mmkcr.core import Axis, MaskEntry, slice_axes
from .gates import QKMask
from .layers.lite_mla import LiteMLA
from .sites.attention_width import scale_queries
from .sites.qk_mask import MaskHook, QKMaskSite

DEPENDS, SHUT, OPEN = -1, 0, 1


def fold_mask(site: QKMaskSite, entry: MaskEntry) -> None:
    """Remove what is constant; the network computes the same wherever these rows are constant.

    A constant row leaves the mask's linear layer. A channel that is shut leaves the queries and the
    keys, where the layer takes narrower ones: an equal number of every head, so that of a head with
    more shut channels than another some stay, and are 0. Elsewhere the weights of shut channels
    become 0. A mask without rows is removed.

    Args:
        site (QKMaskSite): The attention layer, with its mask; changed in place.
        entry (MaskEntry): The constant rows of the whole mask.

    Raises:
        ValueError: The mask has another number of rows, or is folded already.
    """
    mask = site.mask
    if mask is None or mask.place is not None:
        raise ValueError(f'expected a whole mask at `{site.name}`, found one that is folded')
    if entry.total != len(mask.bias):
        raise ValueError(f'expected a fold of {len(mask.bias)} rows at `{site.name}`, found '
                         f'one of {entry.total}')
    device = mask.bias.device
    state = torch.full((entry.total, ), DEPENDS, device=device)
    state[entry.open], state[entry.shut] = OPEN, SHUT
    # rows of the linear layer to entries (R, D) of the mask: all heads may share rows
    parts = 2 if mask.separate else 1
    state, rows = (values.view(parts, -1).repeat(1, mask.repeats)
                   for values in (state, torch.arange(entry.total, device=device)))
    if isinstance(site.owner, LiteMLA) or site.view.narrow is not None:
        # neither part matters if one is 0: the scores are products of queries and keys
        state = state.masked_fill((state == SHUT).any(0), SHUT)
        kept = _narrow(site, state[0] == SHUT)
        state, rows = state[:, kept], rows[:, kept]
    else:
        _clear(site, state == SHUT)
    # a shut entry that is left is 0 without a mask
    needed = rows[state == DEPENDS].unique()
    if len(needed):
        mask.fold(needed, torch.searchsorted(needed, rows).masked_fill(state != DEPENDS,
                                                                       len(needed)))
    else:
        _remove(site, mask)


def _narrow(site: QKMaskSite, shut: Tensor) -> Tensor:
    """Take the channels (D, ) that are shut out of queries and keys; returns those left."""
    owner, linear = site.owner, isinstance(site.owner, LiteMLA)
    heads = shut.view(site.total // owner.head_dim if linear else site.view.heads, -1)
    width = max(1, int((~heads).sum(1).max()))  # not every runtime takes products of no channel
    # the open ones of every head first, then as many shut ones as it needs
    kept = heads.int().argsort(dim=1, stable=True)[:, :width].sort(1)[0]
    kept = kept + heads.shape[1] * torch.arange(len(heads), device=kept.device)[:, None]
    if linear:
        owner.narrow(kept, shut)
        return kept.flatten()
    _clear(site, shut[None])
    if width < heads.shape[1]:
        # rows of the kept channels of queries or keys, and all of the values
        every = torch.arange(site.total, device=kept.device)
        for projection, parts in _parts(site):
            index = [place * site.total + (every if part is None else kept.flatten())
                     for place, part in enumerate(parts)]
            slice_axes([Axis(projection, name) for name in ('weight', 'bias')], torch.cat(index))
        site.host.set_submodule(site.path, site.view.narrow(owner))
        # the host takes the scale of the width that is there
        scale_queries(site.projections()[0], len(heads) * width, (width / heads.shape[1])**0.5)
    return kept.flatten()


def _parts(site: QKMaskSite) -> Iterator[Tuple[nn.Module, List[Optional[int]]]]:
    """Projections of softmax attention with what they hold: 0 queries, 1 keys, None values."""
    parts: List[Optional[int]] = [0, 1, None]
    for projection, count in zip(site.projections(), site.view.fused):
        yield projection, parts[:count]
        parts = parts[count:]


def _clear(site: QKMaskSite, shut: Tensor) -> None:
    """Let channels of queries and of keys, (1 or 2, D), be 0 everywhere."""
    for projection, parts in _parts(site):
        for place, part in enumerate(parts):
            if part is not None:
                cleared = place * site.total + shut[part % len(shut)].nonzero().flatten()
                for value in (projection.weight, projection.bias):
                    if value is not None:
                        value.data[cleared] = 0


def _remove(site: QKMaskSite, mask: QKMask) -> None:
    """Leave the layer without its mask."""
    if isinstance(site.owner, LiteMLA):
        site.owner.mask = None
        return
    for projection in site.projections():
        for key, hook in list(projection._forward_hooks.items()):
            if isinstance(hook, MaskHook) and hook.mask is mask:
                del projection._forward_hooks[key]
    del site.owner.mask
