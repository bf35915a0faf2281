"""Swin's window attention by ``scaled_dot_product_attention``."""

import torch.nn.functional as F
from mmpretrain.models.utils import WindowMSA
from torch import Tensor, nn

from .selection import exporting
from .sized_attention import split_fused
from .take_over import take_over


class FusedWindowMSA(WindowMSA):
    """mmpretrain's ``WindowMSA`` by ``scaled_dot_product_attention``, with the bias as its mask.

    In an export the host's own forward is used.
    """

    #: Whether the fused kernel is used. Without it, hooks on ``softmax`` can read the weights.
    fused: bool = True

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within windows (windows * B, N, C), with a mask (windows, N, N) in (-inf, 0]."""
        if not self.fused or exporting():
            return super().forward(x, mask)
        tokens = x.shape[1]
        q, k, v = split_fused(self.qkv(x), self.num_heads)
        table = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        bias = table.to(q.dtype).view(tokens, tokens, -1).permute(2, 0, 1).contiguous()[None]
        if mask is not None:
            bias = bias + mask.to(bias.dtype)[:, None]  # (windows, H, N, N)
            bias = bias.repeat(len(x) // len(bias), 1, 1, 1)
        out = F.scaled_dot_product_attention(
            q, k, v, bias, self.attn_drop.p if self.training else 0., scale=self.scale)
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))


def fuse_window_attention(module: nn.Module) -> None:
    """Exchange every ``WindowMSA`` inside a module, in place, for a :class:`FusedWindowMSA`."""
    for path, child in list(module.named_modules()):
        if type(child) is WindowMSA:  # not a subclass, which may compute something else
            module.set_submodule(path, take_over(FusedWindowMSA, child))
