"""Attention layers for any number and width of heads, for hosts that assume ``H d = C``.

Each class takes over the parts of its host's layer under their own keys
(:func:`~mmkcr.models.layers.take_over.take_over`) and computes the same function, without a branch
on an argument: :mod:`~mmkcr.models.layers.plain` records it as a graph.
A graph has no branches; where a layer is not recorded, :func:`is_given`, :func:`branch` and
:func:`or_zeros` are the conditionals that they are named after.

Shapes: B images (times windows), N tokens, C channels of the input and output, H remaining heads,
d channels per head.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mmkcr.functional.attention_refit import channels_of_pairs


def is_given(value: Any) -> Any:
    """Whether a value is not None."""
    return value != None if isinstance(value, fx.Proxy) else value is not None  # noqa: E711


def branch(condition: Any, one: Any, other: Any) -> Any:
    """``one`` if a ``condition`` is true, else ``other``; both are computed."""
    if isinstance(condition, fx.Proxy):  # a list of the one value or of none, and the reverse
        return ((one, ) * condition + (other, ) * (1 - condition))[0]
    return one if condition else other


def or_zeros(term: Tensor | None, like: Tensor, edge: float = 0.) -> Tensor:
    """A tensor, or zeros (1, 1, 1) where there is none.

    Args:
        term (Tensor, optional): Of three dimensions at least.
        like (Tensor): Gives type and device of the zeros.
        edge (float): In a graph, entries of this value have no gradient, and the zeros have this
            value: all alike for a softmax. Defaults to 0.
    """
    if not isinstance(term, fx.Proxy):
        return like.new_zeros((1, 1, 1)) if term is None else term
    # `clamp` takes None as a bound, also in TorchScript, which `branch` does not become
    bound, infinite = like.new_full((1, 1, 1), edge), like.new_ones((1, 1, 1)) / 0
    return torch.clamp(bound, -infinite, term) + torch.clamp(bound, term, infinite) - bound


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split channels by head, (B, N, H d) to (B, H, N, d)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def split_fused(x: Tensor, heads: int, parts: int = 3) -> tuple[Tensor, ...]:
    """Split tensors that lie one after the other along the channels.

    Args:
        x (Tensor): (B, N, parts H d).
        heads (int): H.
        parts (int): Number of the tensors. Defaults to 3: queries, keys and values.

    Returns:
        tuple[Tensor, ...]: (B, H, N, d) each.
    """
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


class Sized(nn.Module):
    """Base class of attention layers for any number of heads."""

    #: Whether the host's layer returns its attention maps and this one does not.
    loses_maps: bool = False

    def _qkv(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys and values (B, H, N, d)."""
        if self._modules.get('qkv') is None:
            return tuple(split_heads(layer(x), self.num_heads)
                         for layer in (self.q_proj, self.k_proj, self.v_proj))
        qkv = self.qkv(x)
        if getattr(self, 'q_bias', None) is not None:
            # keys have no bias, or one of zeros
            keys = self.k_bias if hasattr(self, 'k_bias') else torch.zeros_like(self.v_bias)
            qkv = qkv + torch.cat([self.q_bias, keys, self.v_bias])
        return split_fused(qkv, self.num_heads)


class SizedHuggingFaceAttention(Sized):
    """Hugging Face's attention of CLIP and SigLIP, before v5 of ``transformers``."""

    loses_maps = True

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                causal_attention_mask: Tensor | None = None,
                **_: Any) -> tuple[Tensor, None]:
        """Attend among tokens (B, N, C); the weights are not returned."""
        q, k, v = self._qkv(hidden_states)
        one, two, none = attention_mask, causal_attention_mask, q.new_zeros(())
        both = branch(is_given(one), one, none) + branch(is_given(two), two, none)
        mask = branch(is_given(one) & is_given(two), both, branch(is_given(one), one, two))
        out = F.scaled_dot_product_attention(
            q, k, v, mask, self.dropout if self.training else 0., scale=self.scale)
        return self.out_proj(out.transpose(1, 2).flatten(2)), None


class Rotary(nn.Module):
    """Rotates pairs of query or key channels, see :func:`.rotary_pairs`, by the tokens' angles."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        self.register_buffer('channels', None, persistent=False)

    def keep(self, pairs: Tensor, width: int) -> None:
        """Keep only some pairs of a head that had ``width`` channels."""
        self.channels = channels_of_pairs(pairs, width, self.layout)

    def forward(self, x: Tensor, sin: Tensor | None = None,
                cos: Tensor | None = None) -> Tensor:
        """Rotate the last n tokens of (B, H, N, d) by the tables (..., n, dense d), if given."""
        if sin is None:
            return x
        if self.channels is not None:  # the tables are still those of the dense head
            sin, cos = (table.index_select(-1, self.channels) for table in (sin, cos))
        first = x.shape[-2] - sin.shape[-2]  # class and register tokens have no position
        prefix, rest = x.narrow(-2, 0, first), x.narrow(-2, first, sin.shape[-2])
        if self.layout == 'half':
            one, two = rest.chunk(2, -1)
            turned = torch.cat([-two, one], -1)
        else:
            turned = torch.stack([-rest[..., 1::2], rest[..., ::2]], -1).flatten(-2)
        return torch.cat([prefix, (rest * cos + turned * sin).type_as(x)], -2)


class SizedRotaryAttention(Sized):
    """timm's ``EvaAttention`` and ``AttentionRope``: fused projections or three."""

    def forward(self, x: Tensor, rope: Tensor | None = None,
                attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend among tokens (B, N, C)."""
        q, k, v = self._qkv(x)
        # in a graph it is there, although its type says otherwise
        sin, cos = (None, None) if rope is None else or_zeros(rope, x).chunk(2, -1)
        q, k = (self.rotary(part, sin, cos).type_as(v)
                for part in (self.q_norm(q), self.k_norm(k)))
        drop = self.attn_drop.p if self.training else 0.
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, drop, is_causal,
                                             scale=self.scale)
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))


class SizedHuggingFaceRotaryAttention(Sized):
    """Hugging Face's attention of DINOv3; the weights are not returned."""

    loses_maps = True

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None,
                position_embeddings: tuple[Tensor, Tensor] | None = None,
                **_: Any) -> tuple[Tensor, None]:
        """Attend among tokens (B, N, C); positions are cosines and sines."""
        q, k, v = self._qkv(hidden_states)
        cos, sin = position_embeddings
        out = F.scaled_dot_product_attention(
            self.rotary(q, sin, cos), self.rotary(k, sin, cos), v, attention_mask,
            self.dropout if self.training else 0., scale=self.scaling)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None


class SizedMultiheadAttention(Sized, nn.MultiheadAttention):
    """PyTorch's ``nn.MultiheadAttention``, with any number of heads of the dense width.

    It assumes that a mask is the same for all heads, as it is in the hosts.
    ``drop`` is the layer that drops weights, where ``dropout`` is not 0.
    """

    def forward(self, query: Tensor, key: Tensor, value: Tensor,
                key_padding_mask: Tensor | None = None, need_weights: bool = True,
                attn_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """Attend from queries (L, B, C) to keys (S, B, C); the weights are not returned."""
        weights, biases = self.in_proj_weight.unflatten(0, (3, -1)), self.in_proj_bias
        biases = (None, ) * 3 if biases is None else biases.unflatten(0, (3, -1))
        q, k, v = (F.linear(x, weights[part], biases[part]).unflatten(-1, (self.num_heads, -1))
                   .permute(1, 2, 0, 3) for part, x in enumerate((query, key, value)))
        mask, padding = _added(attn_mask, q), _added(key_padding_mask, q)[:, None, None]
        # (B dense heads, L, S) where it is repeated by head: any H of them will do
        images = 1 + (query.shape[1] - 1) * (mask.ndim == 3)
        mask = mask.reshape(images, -1, mask.shape[-2], mask.shape[-1])[:, :self.num_heads]
        if self.dropout:  # as a layer, which knows its mode in a graph, too
            scores = (q * q.shape[-1]**-0.5) @ k.transpose(-2, -1) + (mask + padding)
            out = self.drop(scores.softmax(-1)) @ v
        else:
            mask = branch(is_given(attn_mask) | is_given(key_padding_mask), mask + padding, None)
            out = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(out.permute(2, 0, 1, 3).flatten(2)), None


def _added(mask: Tensor | None, like: Tensor) -> Tensor:
    """A mask in the additive form, where True is -inf; (1, 1) zeros if there is none."""
    mask = branch(is_given(mask), mask, like.new_zeros((1, 1)))
    hidden = like.new_zeros(mask.shape).masked_fill(mask.bool(), float('-inf'))
    return branch(mask.dtype == torch.bool, hidden, mask.to(like))


class SizedReducedAttention(Sized):
    """Attention to a subsampled map: Twins' ``GlobalSubsampledAttention`` and timm's PVT v2."""

    def forward(self, x: Tensor, size: tuple[int, int]) -> Tensor:
        """Attend among tokens (B, N, C) of a map of ``size`` (height, width)."""
        q, reduction = split_heads(self.q(x), self.num_heads), getattr(self, 'sr', None)
        if reduction is not None:
            maps = x.transpose(1, 2).unflatten(2, (size[0], size[1]))  # (B, C, height, width)
            if getattr(self, 'pool', None) is not None:
                maps = self.pool(maps)
            x = self.norm(reduction(maps).flatten(2).transpose(1, 2))
            if getattr(self, 'act', None) is not None:
                x = self.act(x)
        k, v = split_fused(self.kv(x), self.num_heads, 2)
        drop = getattr(self.attn_drop, 'p', self.attn_drop) if self.training else 0.
        out = F.scaled_dot_product_attention(q, k, v, None, drop)
        out = self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))
        return self.out_drop(out) if hasattr(self, 'out_drop') else out


class SizedClassAttention(Sized):
    """XCiT's attention of the class token."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend from the first of the tokens (B, N, C) to all; returns (B, 1, C)."""
        q, k, v = (split_heads(layer(tokens), self.num_heads) for layer, tokens in (
            (self.q, x[:, :1]), (self.k, x), (self.v, x)))
        weights = self.attn_drop(((q * self.scale) @ k.transpose(-2, -1)).softmax(-1))
        return self.proj_drop(self.proj((weights @ v).transpose(1, 2).flatten(2)))


class SizedCrossCovariance(Sized):
    """XCiT's cross-covariance attention: channels of a head attend to each other."""

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, C) to (B, N, C)."""
        # (B, H, d, N) each: the scores are (d, d), between channels
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 4, 1)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        out = self.attn_drop((scores * self.temperature).softmax(-1)) @ v  # (B, H, d, N)
        return self.proj_drop(self.proj(out.permute(0, 3, 1, 2).flatten(2)))
