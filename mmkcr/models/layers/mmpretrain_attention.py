"""Attention layers of :mod:`.sized_attention` that are also layers of mmpretrain.

They keep the class of their host's layer, so that it initialises them and knows them as its own.
"""

import torch.nn.functional as F
from mmpretrain.models.backbones.twins import LocallyGroupedSelfAttention
from mmpretrain.models.backbones.xcit import XCA, ClassAttntion
from mmpretrain.models.utils import WindowMSA
from mmpretrain.models.utils.attention import BEiTAttention, WindowMSAV2
from torch import Tensor

from .optional import RARE, or_zeros
from .sized_attention import (
    Sized,
    SizedAttention,
    SizedWindowAttentionV2,
    WindowAttention,
    split_heads,
)


class SizedWindowMSA(WindowAttention, WindowMSA):
    """mmpretrain's ``WindowMSA``."""


class SizedMixMIMAttention(SizedWindowMSA):
    """mmpretrain's ``MixMIMWindowAttention``."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within windows of tokens (B, N, C), in pre-training within each of two images.

        There the mask (B, N, 1) is 1 for tokens of the one image and 0 for those of the other.
        """
        first = or_zeros(mask, x)[:, None]  # (B, 1, N, 1)
        alike = first * first.transpose(2, 3) + (1 - first) * (1 - first).transpose(2, 3)
        return self._attend(x, (alike - 1) * 65500)  # a float16, too, whose exponential is 0


class SizedWindowMSAV2(SizedWindowAttentionV2, WindowMSAV2):
    """mmpretrain's ``WindowMSAV2``."""


class SizedBEiTAttention(SizedAttention, BEiTAttention):
    """mmpretrain's ``BEiTAttention``."""

    def forward(self, x: Tensor, rel_pos_bias: Tensor | None = None) -> Tensor:
        """Attend among tokens (B, N, C), optionally with a shared bias (H, N, N) on the scores."""
        return self._attend(x, or_zeros(rel_pos_bias, x, RARE)[None])


class SizedGroupedAttention(SizedAttention, LocallyGroupedSelfAttention):
    """Twins' ``LocallyGroupedSelfAttention``."""

    relative_position_bias_table: Tensor | None = None

    def forward(self, x: Tensor, hw_shape: tuple[int, int]) -> Tensor:
        """Attend within windows among tokens (B, N, C) of a map of ``hw_shape``."""
        height, width = hw_shape[0], hw_shape[1]
        side, x = self.window_size, x.unflatten(1, (height, width))
        right, below = -width % side, -height % side  # padding to whole windows
        x = F.pad(x, (0, 0, 0, right, 0, below))
        padded = F.pad(x.new_zeros(1, height, width, 1), (0, 0, 0, right, 0, below), value=1.)
        mask = self._windows(padded).squeeze(-1)  # (windows, side^2): 1 where padded
        # real tokens and padding do not attend to each other; the host does not mask the padding
        # of one side alone
        apart = (mask[:, :, None] - mask[:, None, :]).abs() * ((right > 0) & (below > 0))
        windows = self._mix(self._windows(x), -1000. * apart[:, None])
        # `x.shape`, not `len`, which exporters freeze
        windows = windows.view(x.shape[0], x.shape[1] // side, -1, side, side, windows.shape[-1])
        # (B, rows of windows, columns, side, side, H d): back to a map
        out = windows.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (B, height, width, H d)
        # projected as in the host, without padding and in the order of the map
        return self.proj_drop(self.proj(out[:, :height, :width].flatten(1, 2)))

    def _windows(self, x: Tensor) -> Tensor:
        """Split maps (B, height, width, C) into windows (B * windows, side^2, C)."""
        side = self.window_size
        x = x.unflatten(2, (-1, side)).unflatten(1, (-1, side))
        return x.transpose(2, 3).flatten(0, 2).flatten(1, 2)


class SizedClassAttention(Sized, ClassAttntion):
    """XCiT's attention of the class token."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend from the first of the tokens (B, N, C) to all; returns (B, 1, C)."""
        q, k, v = (split_heads(layer(tokens), self.num_heads) for layer, tokens in (
            (self.q, x[:, :1]), (self.k, x), (self.v, x)))
        weights = self.attn_drop(((q * self.scale) @ k.transpose(-2, -1)).softmax(-1))
        return self.proj_drop(self.proj((weights @ v).transpose(1, 2).flatten(2)))


class SizedCrossCovariance(Sized, XCA):
    """XCiT's cross-covariance attention: channels of a head attend to each other."""

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) to (B, N, C)."""
        # (B, H, d, N) each: the scores are (d, d), between channels
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        out = self.attn_drop((scores * self.temperature).softmax(-1)) @ v  # (B, H, d, N)
        return self.proj_drop(self.proj(out.permute(0, 3, 1, 2).flatten(2)))
