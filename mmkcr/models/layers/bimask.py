"""Layers of a supernet whose residual width, attention and hidden width are masked (OFB, 3.2).

Each takes the parts of a host's layer under their own keys, and gives them
back by :func:`take_over`: a subnet consists of the host's own classes.
"""

import math
from functools import partial
from typing import Any, Optional, Sequence, Tuple, Type, TypeVar

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import FFN, PatchEmbed
from mmpretrain.models.utils import MultiheadAttention, WindowMSA
from torch import Tensor, nn

from mmkcr.core import SearchableLayer
from mmkcr.core.sites import Count
from mmkcr.models.gates import BiMaskGate

Layer = TypeVar('Layer', bound=nn.Module)


def take_over(cls: Type[Layer], module: nn.Module, without: Sequence[str] = (),
              **attributes: Any) -> Layer:
    """A layer of another class with the parts of a given one, under their own names.

    Args:
        cls (type): The new layer's class.
        module (nn.Module): Gives parameters, buffers, children, hooks and
            plain attributes; not to be used any more.
        without (Sequence[str]): Children and attributes that are left out.
        **attributes: Children and plain attributes that are added.

    Returns:
        nn.Module: The new layer.
    """
    new = cls.__new__(cls)
    new.__dict__ = {key: value.copy() if isinstance(value, dict) else value
                    for key, value in module.__dict__.items() if key not in without}
    for name in without:
        new._modules.pop(name, None)
    for name, value in attributes.items():
        setattr(new, name, value)
    return new


def masked_linear(linear: nn.Linear, gate: BiMaskGate, x: Tensor, repeats: int = 1) -> Tensor:
    """A linear layer with a gate's mask on its outputs.

    The mask goes into weight and bias, which have far fewer entries than the
    outputs of a batch.

    Args:
        linear (nn.Linear): The layer.
        gate (BiMaskGate): Of its outputs.
        x (Tensor): Its input.
        repeats (int): Times that the gate's units follow each other in the
            outputs (3 for queries, keys and values). Defaults to 1.
    """
    weight, bias = linear.weight, linear.bias
    if not gate.folded:
        mask = gate().to(weight.dtype).repeat(repeats)
        weight, bias = weight * mask[:, None], None if bias is None else bias * mask
    return F.linear(x, weight, bias)


class MaskedLayerNorm(nn.LayerNorm):
    """Layer norm over the channels of the residual stream that a gate supports.

    The statistics are those of the supported channels alone, and the others
    come out as 0, so that nothing changes when they are sliced away.
    """

    #: The gate, in a tuple: it belongs to another layer.
    shared: Tuple[BiMaskGate]
    #: Consecutive channels a unit (4 where 2 x 2 neighbours were unfolded).
    inner: int = 1

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., present * inner)."""
        supported = self.shared[0].supported()
        if supported is None:
            return super().forward(x)
        x = x.to(torch.promote_types(x.dtype, torch.float32))  # as the host's does under autocast
        mask = supported.to(x.dtype).repeat_interleave(self.inner)
        count = mask.sum()
        centred = (x - (x * mask).sum(-1, keepdim=True) / count) * mask
        variance = centred.square().sum(-1, keepdim=True) / count
        out = centred * torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            out = out * self.weight
        return out if self.bias is None else (out + self.bias) * mask


class MaskedDropout(nn.Dropout):
    """The dropout after the embedding, which also applies the mask of the residual width."""

    shared: Tuple[BiMaskGate]

    def forward(self, x: Tensor) -> Tensor:
        """Mask embedded tokens with position, (B, N, present)."""
        return super().forward(x * self.shared[0]().to(x.dtype))


class GatedPatchEmbed(PatchEmbed, SearchableLayer):
    """Patch embedding of a supernet: holds the gate of the residual width.

    The mask also multiplies position and class tokens, so it is applied after
    these are added, by :class:`MaskedDropout`.
    """

    gate: BiMaskGate

    def macs(self, size: Count, input_shape: Sequence[int]) -> Count:
        """``positions * size * in_channels * kernel area``."""
        conv, sides = self.projection, input_shape[-2:]
        if self.adaptive_padding:
            sides = [side + pad for side, pad in
                     zip(sides, self.adaptive_padding.get_pad_shape(sides))]
        positions = 1
        for side, kernel, stride, padding, dilation in zip(
                sides, conv.kernel_size, conv.stride, conv.padding, conv.dilation):
            positions *= (side + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        return positions * conv.in_channels * conv.kernel_size[0] * conv.kernel_size[1] * size


class GatedAttention(MultiheadAttention, SearchableLayer):
    """Attention of a supernet, with one mask on queries, keys and values.

    The softmax keeps the scale of the dense head.
    """

    gate: BiMaskGate
    scale: float

    @classmethod
    def convert_from(cls, attention: nn.Module, **attributes: Any) -> 'GatedAttention':
        """Take over a dense attention.

        Args:
            attention (MultiheadAttention): mmpretrain's, without ``v_shortcut``.
            **attributes: ``gate``, ``couplings``.

        Raises:
            TypeError: Another layer.
        """
        if type(attention) is not MultiheadAttention or attention.v_shortcut:
            raise TypeError("expected mmpretrain's `MultiheadAttention` without `v_shortcut` to "
                            f'gate, found `{attention.__class__.__name__}`')
        return take_over(cls, attention, scale=attention.head_dims**-0.5, **attributes)

    def forward(self, x: Tensor) -> Tensor:
        """Attend among tokens (B, N, width)."""
        batch, tokens, _ = x.shape
        heads = self.gate.present_shape
        qkv = masked_linear(self.qkv, self.gate, x, 3)
        query, key, value = qkv.view(batch, tokens, 3, *heads).permute(2, 0, 3, 1, 4)
        drop = self.attn_drop if self.training else 0.
        out = F.scaled_dot_product_attention(query, key, value, dropout_p=drop, scale=self.scale)
        out = self.proj(out.transpose(1, 2).flatten(2))
        return self.out_drop(self.gamma1(self.proj_drop(out)))

    def macs(self, size: Count, input_shape: Sequence[int], width: Count) -> Count:
        """``4 N width size`` for the four projections and ``2 N^2 size`` for the products."""
        tokens = input_shape[1]
        return 4 * tokens * width * size + 2 * tokens * tokens * size


class SizedWindowMSA(WindowMSA):
    """Window attention whose heads need not fill the width of its input."""

    def _qkv(self, x: Tensor) -> Tensor:
        return self.qkv(x)

    def forward(self, x: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """Attend within windows.

        Args:
            x (Tensor): Shape (windows * B, N, width).
            mask (Tensor, optional): Shape (windows, N, N), within (-inf, 0].
        """
        batch, tokens, _ = x.shape
        qkv = self._qkv(x).view(batch, tokens, 3, self.num_heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        table = self.relative_position_bias_table[self.relative_position_index.view(-1)]
        scores = (query * self.scale) @ key.transpose(-2, -1)
        scores = scores + table.view(tokens, tokens, -1).permute(2, 0, 1)
        if mask is not None:
            # `mask.shape`, not `len`: exporters follow the one and freeze the other
            scores = scores.view(-1, mask.shape[0], *scores.shape[1:]) + mask[:, None]
            scores = scores.flatten(0, 1)
        out = self.attn_drop(self.softmax(scores)) @ value
        return self.proj_drop(self.proj(out.transpose(1, 2).flatten(2)))


class GatedWindowMSA(SizedWindowMSA, SearchableLayer):
    """Window attention of a supernet, with one mask on queries, keys and values."""

    gate: BiMaskGate

    def _qkv(self, x: Tensor) -> Tensor:
        return masked_linear(self.qkv, self.gate, x, 3)

    def macs(self, size: Count, input_shape: Sequence[int], width: Count) -> Count:
        """``windows (4 N width size + 2 N^2 size)``."""
        windows, tokens = input_shape[:2]
        return windows * (4 * tokens * width * size + 2 * tokens * tokens * size)


class GatedLinear(nn.Linear, SearchableLayer):
    """Linear layer of a supernet that embeds merged patches: its outputs are a new width.

    Args of its making by :func:`take_over`: ``gate``, ``couplings`` with the
    ``width`` that it reads, ``inner``, the entries of one unit of that.
    """

    gate: BiMaskGate
    inner: int

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width * inner) to (..., present) and mask it."""
        return masked_linear(self, self.gate, x)

    def macs(self, size: Count, input_shape: Sequence[int], width: Count) -> Count:
        """``positions * width * inner * size``."""
        return math.prod(input_shape[:-1]) * width * self.inner * size


def size_attention(attention: MultiheadAttention, heads: int, width: int,
                   scale: Optional[float] = None) -> None:
    """Set the sizes of an attention whose weights were sliced.

    Args:
        attention (MultiheadAttention): The layer.
        heads (int): Heads kept.
        width (int): Channels kept of each head.
        scale (float, optional): Of the softmax; given to the host's own
            forward, which would take that of the sliced width.
    """
    attention.num_heads, attention.head_dims = heads, width
    attention.embed_dims = heads * width
    attention.input_dims = attention.qkv.in_features
    if scale is not None:
        attention.scaled_dot_product_attention = partial(F.scaled_dot_product_attention,
                                                         scale=scale)


class GatedHiddenFFN(FFN, SearchableLayer):
    """MLP of a supernet with a mask on its hidden layer, before the activation."""

    gate: BiMaskGate

    @classmethod
    def convert_from(cls, ffn: nn.Module, **attributes: Any) -> 'GatedHiddenFFN':
        """Take over a dense MLP.

        Args:
            ffn (FFN): mmcv's, of two linear layers, with an activation that
                maps 0 to 0.
            **attributes: ``gate``, ``couplings``.

        Raises:
            TypeError: Another layer.
        """
        if not isinstance(ffn, FFN) or ffn.num_fcs != 2 or not ffn.add_identity:
            raise TypeError('expected an mmcv `FFN` of two layers with identity to gate, found '
                            f'`{ffn.__class__.__name__}`')
        if ffn.layers[0][1](torch.zeros(1)).abs().item() > 0:
            raise TypeError('expected an activation that maps 0 to 0 in a gated `FFN`, found '
                            f'`{ffn.layers[0][1].__class__.__name__}`')
        return take_over(cls, ffn, **attributes)

    def forward(self, x: Tensor, identity: Optional[Tensor] = None) -> Tensor:
        """Run the MLP on ``x`` of shape (..., width)."""
        linear, activation, drop = self.layers[0]
        hidden = drop(activation(masked_linear(linear, self.gate, x)))
        out = self.gamma2(self.layers[2](self.layers[1](hidden)))
        return (x if identity is None else identity) + self.dropout_layer(out)

    def macs(self, size: Count, input_shape: Sequence[int], width: Count) -> Count:
        """``2 positions width size`` for both linear layers."""
        return 2 * math.prod(input_shape[:-1]) * width * size
