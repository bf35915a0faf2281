"""Softmax attention with masked queries and keys (DCS, section 3.1).

B batch, N tokens, D channels, H heads, d head width (D = H d).
"""

from typing import Tuple

from mmengine.model import BaseModule
from mmpretrain.models.utils import MultiheadAttention
from torch import Tensor

from mmkcr.models.gates import QKMask


class MaskedAttention(BaseModule):
    r"""``softmax((Q * M)(K * M)^T / sqrt(d)) V`` with the mask M of each token.

    Args:
        attention (MultiheadAttention): mmpretrain's; its parameters keep their keys.
        mask (QKMask): Of D channels, under the key ``mask``.

    Raises:
        TypeError: ``attention`` is no mmpretrain ``MultiheadAttention``, or has a shortcut of its
            values.
    """

    def __init__(self, attention: MultiheadAttention, mask: QKMask) -> None:
        super().__init__()
        if not isinstance(attention, MultiheadAttention) or attention.v_shortcut:
            raise TypeError("expected mmpretrain's `MultiheadAttention` without `v_shortcut` to "
                            f'mask, found `{attention.__class__.__name__}`')
        self.embed_dims = attention.embed_dims
        self.num_heads = attention.num_heads
        self.head_dims = attention.head_dims
        self.scaled_dot_product_attention = attention.scaled_dot_product_attention
        self.qkv = attention.qkv
        self.attn_drop = attention.attn_drop
        self.proj = attention.proj
        self.proj_drop = attention.proj_drop
        self.out_drop = attention.out_drop
        self.gamma1 = attention.gamma1
        self.training = attention.training
        self.mask = mask

    def queries_keys_values(self, x: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        """Masked queries and keys, and values.

        Args:
            x (Tensor): (B, N, D).

        Returns:
            tuple[Tensor, Tensor, Tensor]: (B, H, N, d) each.
        """
        qk, v = self.qkv(x).unflatten(-1, (3, self.embed_dims)).split([2, 1], -2)
        q, k = (qk * self.mask.binarize(self.mask(x))).unbind(-2)
        return tuple(part.unflatten(-1, (self.num_heads, self.head_dims)).transpose(1, 2)
                     for part in (q, k, v.squeeze(-2)))

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to the same shape."""
        q, k, v = self.queries_keys_values(x)
        out = self.scaled_dot_product_attention(
            q, k, v, dropout_p=self.attn_drop if self.training else 0.)
        out = self.proj(out.transpose(1, 2).flatten(2))
        return self.out_drop(self.gamma1(self.proj_drop(out)))
