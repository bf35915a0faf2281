"""Attention with biases on its scores, for any number and width of heads: of Swin, BEiT, Twins.

See :mod:`.sized_attention`, also for the shapes.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from .sized_attention import Sized, or_zeros


class SizedAttention(Sized):
    """Attention with a fused ``qkv`` and a bias on the scores.

    Subclasses override differences of their host, such as :meth:`_table` and :meth:`_scores`.
    """

    def init_weights(self) -> None:
        """Draw the biases by relative position, as the hosts do, if there are any."""
        if isinstance(getattr(self, 'relative_position_bias_table', None), nn.Parameter):
            nn.init.trunc_normal_(self.relative_position_bias_table, std=0.02)

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Scaled products of queries and keys, (B, H, N, N)."""
        return (q * self.scale) @ k.transpose(-2, -1)

    def _table(self) -> Tensor | None:
        """Biases of the scores by relative position, (positions, H), or None."""
        return self.relative_position_bias_table

    def _attend(self, x: Tensor, added: Tensor) -> Tensor:
        """Tokens (B, N, C) to (B, N, C), with a term (windows, H, N, N) added to the scores.

        It may have 1 instead of each. The windows of an image follow each other along B.
        """
        return self.proj_drop(self.proj(self._mix(x, added)))

    def _mix(self, x: Tensor, added: Tensor) -> Tensor:
        """Inputs of the projection, (B, N, H d); arguments as of :meth:`_attend`."""
        q, k, v = self._qkv(x)
        scores, table, tokens = self._scores(q, k), self._table(), x.shape[1]
        if table is not None:
            bias = table[self.relative_position_index.view(-1)].view(tokens, tokens, -1)
            added = added + bias.permute(2, 0, 1)
        # (images, windows, H, N, N); `added.shape`, not `len`, which exporters freeze
        scores = (scores.unflatten(0, (-1, added.shape[0])) + added).flatten(0, 1)
        # a module where the host has one, which an analysis may hook
        weights = self.softmax(scores) if hasattr(self, 'softmax') else scores.softmax(-1)
        return (self.attn_drop(weights) @ v).transpose(1, 2).flatten(2)


class SizedWindowAttention(SizedAttention):
    """Attention within windows, with a mask where they were shifted."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within windows (B, N, C); the mask (windows, N, N) is added to their scores."""
        return self._attend(x, or_zeros(mask, x)[:, None])


class SizedMixMIMAttention(SizedWindowAttention):
    """mmpretrain's ``MixMIMWindowAttention``."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend within windows of tokens (B, N, C), in pre-training within each of two images.

        There the mask (B, N, 1) is 1 for tokens of the first image and 0 for tokens of the second.
        """
        first = or_zeros(mask, x)[:, None]  # (B, 1, N, 1)
        alike = first * first.transpose(2, 3) + (1 - first) * (1 - first).transpose(2, 3)
        return self._attend(x, (alike - 1) * 65500)  # a float16, too, whose exponential is 0


class SizedWindowAttentionV2(SizedWindowAttention):
    """Swin V2: cosine attention with a learned temperature; an MLP gives the position bias."""

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        scale = self.logit_scale.clamp(max=4.605170185988092).exp()  # at most 100: log(100)
        return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * scale

    def _table(self) -> Tensor:
        table = self.cpb_mlp(self.relative_coords_table)
        return 16 * table.view(-1, self.num_heads).sigmoid()


class SizedBEiTAttention(SizedAttention):
    """BEiT's attention; where all layers share their biases, heads are refused."""

    def forward(self, x: Tensor, rel_pos_bias: Tensor | None = None,
                shared_rel_pos_bias: Tensor | None = None) -> Tensor:
        """Attend among tokens (B, N, C); a shared bias has a name in mmpretrain, one in timm."""
        # (H, N, N); learned ones begin at zero, which keeps its gradient: none is this float16
        biases = (or_zeros(one, x, 2.**-24) for one in (rel_pos_bias, shared_rel_pos_bias))
        return self._attend(x, sum(biases)[None])


class SizedGroupedAttention(SizedAttention):
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
