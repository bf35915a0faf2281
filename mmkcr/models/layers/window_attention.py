"""Swin's window attention by the fused kernel, and its windows and merged patches in one copy."""

from functools import lru_cache
from typing import List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import PatchMerging
from mmpretrain.models.utils import ShiftWindowMSA, WindowMSA
from torch import Tensor, nn

from mmkcr.models.execution import eager_inference, exporting
from .bimask import take_over


class FusedWindowMSA(WindowMSA):
    """mmpretrain's ``WindowMSA`` by ``scaled_dot_product_attention``, with the bias as its mask.

    An export computes as the host does.
    """

    #: Whether the fused kernel is used; without it the weights can be read from ``softmax``.
    fused: bool = True

    def forward(self, x: Tensor, mask: Optional[Tensor] = None,
                counts: Optional[Sequence[int]] = None) -> Tensor:
        """Attend within windows.

        Args:
            x (Tensor): Shape (windows * B, N, C).
            mask (Tensor, optional): Shape (M, N, N), within (-inf, 0].
            counts (Sequence[int], optional): The first ``counts[0]`` windows have the mask's
                first entry, and so on. Defaults to None: M = windows, and the entries take turns.
        """
        if counts is None and (exporting() or not self.fused):
            return super().forward(x, mask)
        tokens = x.shape[1]
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        table = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = table.to(qkv.dtype).view(tokens, tokens, -1).permute(2, 0, 1).contiguous()[None]
        if mask is not None:
            bias = bias + mask.to(bias.dtype)[:, None]
            if counts is None:
                bias = bias.repeat(len(x) // len(bias), 1, 1, 1)
        if counts is None:
            out = self._attend(qkv, bias)
        else:
            parts = zip(qkv.split(list(counts), 1), bias.split(1), counts)
            out = torch.cat([self._attend(*part) for *part, count in parts if count])
        return self.proj_drop(self.proj(out))

    def _attend(self, qkv: Tensor, bias: Tensor) -> Tensor:
        out = F.scaled_dot_product_attention(
            *qkv, bias, self.attn_drop.p if self.training else 0., scale=self.scale)
        return out.transpose(1, 2).flatten(2)


class WindowRows(NamedTuple):
    """Where the tokens of a batch of maps lie in windows, and back.

    Args:
        rows (Tensor): Token of every place in the windows, of all maps one after the other;
            windows with the same mask lie together.
        places (Tensor): Place of every token.
        padding (Tensor): Places without a token; ``rows`` has 0 there.
        counts (list[int]): Windows inside, at the right edge, at the bottom and in the corner, of
            all maps; all of them inside without a shift.
    """

    rows: Tensor
    places: Tensor
    padding: Tensor
    counts: List[int]


@lru_cache(maxsize=64)
def window_rows(batch: int, hw_shape: Tuple[int, int], size: int, shift: int) -> WindowRows:
    """Padding, cyclic shift and partition as one gather.

    Args:
        batch (int): Maps.
        hw_shape (tuple[int]): Height and width of a map.
        size (int): Of a window.
        shift (int): Towards the right-bottom.
    """
    height, width = hw_shape
    down, across = -(-height // size), -(-width // size)
    y = (torch.arange(down * size) + shift)[:, None] % (down * size)
    x = (torch.arange(across * size) + shift)[None] % (across * size)
    rows = torch.where((y < height) & (x < width), y * width + x, -1)
    rows = rows.view(down, size, across, size).transpose(1, 2).reshape(-1, size * size)
    edge = 2 * (torch.arange(down) == down - 1)[:, None] + (torch.arange(across) == across - 1)
    kinds = edge.flatten() * (shift > 0)
    rows = rows[kinds.argsort(stable=True)][:, None]
    maps = torch.arange(batch)[:, None] * (height * width)
    rows = torch.where(rows < 0, rows, rows + maps).flatten()
    places, padding = (rows >= 0).nonzero().flatten(), (rows < 0).nonzero().flatten()
    inverse = torch.empty_like(places).index_copy_(0, rows[places], places)
    return WindowRows(rows.clamp(min=0), inverse, padding,
                      (batch * kinds.bincount(minlength=4)).tolist())


class GatheredWindowMSA(ShiftWindowMSA):
    """mmpretrain's ``ShiftWindowMSA`` around a :class:`FusedWindowMSA`.

    Without gradients, in eager mode on a CPU, one gather takes the place of padding, shift and
    partition, and one that of their reverse; both are exact.
    """

    def forward(self, query: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Attend within the windows of maps (B, H * W, C)."""
        size, shift, shortest = self.window_size, self.shift_size, min(hw_shape)
        fast = eager_inference(query) and self.w_msa.fused
        refused = shortest < size and not self.pad_small_map or \
            query.shape[1] != hw_shape[0] * hw_shape[1]
        if refused or not fast:  # the host says what it refuses
            return super().forward(query, hw_shape)
        if shortest == size and not self.pad_small_map:
            shift = 0
        plan = window_rows(len(query), tuple(hw_shape), size, shift)
        x = query.flatten(0, 1).index_select(0, plan.rows)
        if len(plan.padding):
            x.index_fill_(0, plan.padding, 0)
        x = x.view(-1, size * size, x.shape[-1])
        if shift:
            # every kind of window occurs once in a map of 2 x 2
            mask = self.get_attn_mask((2 * size, 2 * size), size, shift, query.device)
            x = self.w_msa(x, mask, plan.counts)
        else:
            x = self.w_msa(x)
        return self.drop(x.flatten(0, 1).index_select(0, plan.places).view_as(query))


class CopiedPatchMerging(PatchMerging):
    """mmcv's ``PatchMerging`` of 2 x 2 patches; one copy takes the place of its three, exactly."""

    def forward(self, x: Tensor, input_size: Tuple[int, int]) -> Tuple[Tensor, Tuple[int, int]]:
        """Merge maps (B, H * W, C) to (B, ceil(H / 2) * ceil(W / 2), C_out)."""
        height, width = input_size
        if not eager_inference(x) or x.shape[1] != height * width:
            return super().forward(x, input_size)
        x = x.unflatten(1, (height, width))
        if height % 2 or width % 2:
            x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).permute(0, 1, 3, 5, 2, 4)
        size = tuple(x.shape[1:3])
        x = x.flatten(3).flatten(1, 2)
        return self.reduction(x if self.norm is None else self.norm(x)), size


def _merges_pairs(module: nn.Module) -> bool:
    if type(module) is not PatchMerging:
        return False
    sampler, padding = module.sampler, module.adaptive_padding
    return (sampler.kernel_size == sampler.stride == (2, 2) and sampler.dilation == (1, 1)
            and padding is not None and padding.padding == 'corner')


def fuse_window_attention(module: nn.Module) -> None:
    """Exchange all of the host's window attention and patch merging inside a module.

    Args:
        module (nn.Module): Changed in place; keys stay.
    """
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is ShiftWindowMSA and type(child.w_msa) is WindowMSA:
                setattr(parent, name, take_over(GatheredWindowMSA, child,
                                                w_msa=take_over(FusedWindowMSA, child.w_msa)))
            elif _merges_pairs(child):
                setattr(parent, name, take_over(CopiedPatchMerging, child))
