"""Operators that stand in for attention heads (drop-in depthwise convolution, section 3.2).

An operator has parameters of its own; the values' weights and the columns of the output
projection stay those of the attention. Shapes: B images, N tokens of which E are extra (class
and register tokens) and P = h * w are patches, D channels, s heads of d channels each, C output
channels: s * d, or d where the heads are ensembled into one.
"""

from abc import ABCMeta, abstractmethod
from typing import Dict, Optional, Tuple, Type

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core import Axis, slice_axes, slice_parameter
from mmkcr.core.added import AddedLayer
from mmkcr.core.sites import Cost

#: Softmax temperature of the ensembles over heads.
ENSEMBLE_TEMPERATURE = 0.01
Derived = Dict[str, Optional[Tensor]]


def gaussian_taps(sigma: float = 1.) -> Tensor:
    """Normalised 3 x 3 Gaussian, shape (3, 3), sum 1."""
    line = torch.exp(-torch.tensor([-1., 0., 1.]).square() / (2 * sigma**2))
    return torch.outer(line, line) / line.sum()**2


def border_sums(taps: Tensor, hw: Tuple[int, int]) -> Tensor:
    """What 3 x 3 kernels give on a map of ones with zeros around it.

    Args:
        taps (Tensor): Kernels, shape (C, 3, 3).
        hw (tuple[int, int]): Size of the map.

    Returns:
        Tensor: Shape (1, C, h, w): the sum of a kernel, less at the border.
    """
    height, width = hw
    inside = F.pad(taps.new_ones(1, 1, height, width), (1, 1, 1, 1))
    return sum(inside[..., y:y + height, x:x + width] * taps[None, :, y, x, None, None]
               for y in range(3) for x in range(3))


class TokenExchange(nn.Module):
    """Two learned scalars a head between each extra token and the patches.

    An extra token takes the mean of the patches' values, times the first; the patches take
    the extra token's value, times the second, before the convolution. The public code has this
    for the class token; register tokens are treated alike.

    Args:
        extra (int): E.
        heads (int): s.
    """

    def __init__(self, extra: int, heads: int) -> None:
        super().__init__()
        # an extra token starts with the mean, as of an even attention; the patches ignore it
        self.from_patches = nn.Parameter(torch.ones(extra, heads))
        self.to_patches = nn.Parameter(torch.zeros(extra, heads))

    def forward(self, extra: Tensor, mean: Tensor) -> Tuple[Tensor, Tensor]:
        """New extra tokens, and what each patch takes from the old ones.

        Args:
            extra (Tensor): Values of the extra tokens, shape (B, E, C).
            mean (Tensor): Mean value of the patches, shape (B, 1, C).

        Returns:
            tuple[Tensor, Tensor]: Shapes (B, E, C) and (B, 1, C).
        """
        repeat = extra.shape[-1] // self.from_patches.shape[1]
        taken = self.from_patches.repeat_interleave(repeat, 1) * mean
        given = (self.to_patches.repeat_interleave(repeat, 1) * extra).sum(1, keepdim=True)
        return extra + taken, given


class HeadOperator(AddedLayer, metaclass=ABCMeta):
    """Computes the output of s heads from the tokens, without attention.

    Args:
        heads (int): s.
        head_dims (int): d.
        extra (int): E. Defaults to 0.
    """

    #: Whether the heads are mixed into one.
    ensembled: bool = False
    #: Whether it works on the heads' values, by ``mix(values, hw)``, and not on their weights.
    reads_values: bool = False
    #: Taps that each head's logits are about.
    logits_shape: Tuple[int, ...] = ()

    def __init__(self, heads: int, head_dims: int, extra: int = 0) -> None:
        super().__init__()
        self.heads, self.head_dims = heads, head_dims
        self.exchange = TokenExchange(extra, self.out_heads) if extra else None
        if self.ensembled:
            self.logits = nn.Parameter(torch.ones(heads, *self.logits_shape))

    @property
    def out_heads(self) -> int:
        """Heads of the output."""
        return 1 if self.ensembled else self.heads

    @abstractmethod
    def derive(self, weight: Tensor, bias: Optional[Tensor], columns: Tensor,
               chosen: Optional[Tensor] = None) -> Derived:
        """Weights that do not depend on the image.

        Args:
            weight (Tensor): Of the values, shape (s * d, D).
            bias (Tensor, optional): Of the values, shape (s * d,).
            columns (Tensor): Of the output projection, shape (D, s * d).
            chosen (Tensor, optional): How far each head is replaced, in [0, 1], shape (s,):
                an ensemble is over those. Defaults to all.

        Returns:
            dict[str, Tensor]: ``value``, ``bias``, ``columns`` (D, C) and, for full
            convolutions, ``kernel`` (C, D, 3, 3) and ``taps``.
        """

    @abstractmethod
    def run(self, x: Tensor, derived: Derived, hw: Tuple[int, int]) -> Tensor:
        """Output of the heads before the projection, shape (B, N, C).

        Args:
            x (Tensor): Tokens, extra ones first, shape (B, N, D).
            derived (dict): Of :meth:`derive`.
            hw (tuple[int, int]): h and w.
        """

    @abstractmethod
    def macs_per_head(self, dims: int, tokens: int, patches: int) -> int:
        """Multiply-accumulates of one output head, without the projection."""

    def macs(self, heads: Cost, dims: int, tokens: int, patches: int) -> Cost:
        """Multiply-accumulates for so many replaced heads, without the projection."""
        return self.count_out(heads) * self.macs_per_head(dims, tokens, patches)

    def params(self, heads: Cost) -> Cost:
        """Parameters for so many replaced heads."""
        mixed = self.logits.numel() if self.ensembled else 0
        own = sum(parameter.numel() for parameter in self.parameters()) - mixed
        return self.count_out(heads) * (own // self.out_heads) + heads * (mixed // self.heads)

    def count_out(self, heads: Cost) -> Cost:
        """Output heads for so many replaced ones."""
        if not self.ensembled:
            return heads
        return heads.clamp(max=1) if isinstance(heads, Tensor) else min(heads, 1)

    def select(self, index: Tensor) -> 'HeadOperator':
        """Keep only the given heads, int64 of shape (s',), in place."""
        self.heads = len(index)
        if self.ensembled:
            slice_parameter(self, 'logits', {0: index})
        else:
            self._select(index)
            if self.exchange is not None:
                for name in ('from_patches', 'to_patches'):
                    slice_parameter(self.exchange, name, {1: index})
        return self

    def _select(self, index: Tensor) -> None:
        """Slice what is there once a head."""

    def shares(self, chosen: Optional[Tensor]) -> Tensor:
        """Share of every head in the ensemble, shape (s, ...), 1 in sum over the heads."""
        logits = self.logits / ENSEMBLE_TEMPERATURE
        if chosen is not None:
            used = (chosen > 0) | (chosen <= 0).all()  # none at all is no ensemble to mask
            log = torch.log(torch.where(chosen > 0, chosen, torch.ones_like(chosen)))
            log = torch.where(used, log, torch.full_like(log, -torch.inf))
            logits = logits + log.reshape(-1, *[1] * (logits.ndim - 1))
        return logits.softmax(0)

    def _split(self, v: Tensor) -> Tuple[Tensor, Tensor]:
        extra = self.exchange.from_patches.shape[0]
        return v[:, :extra], v[:, extra:]


def _to_map(patches: Tensor, hw: Tuple[int, int]) -> Tensor:
    """(B, P, C) to (B, C, h, w), a view with the channels last in memory."""
    return patches.reshape(patches.shape[0], hw[0], hw[1], patches.shape[-1]).permute(0, 3, 1, 2)


class DepthwiseHeads(HeadOperator):
    """DW[all]: a depthwise 3 x 3 convolution of the values (equation 11).

    Stride 1, zero padding, bias; no activation, norm or scale. It starts as a normalised
    Gaussian of sigma 1 with bias 0. Arguments as :class:`HeadOperator`.
    """

    reads_values = True

    def __init__(self, heads: int, head_dims: int, extra: int = 0) -> None:
        super().__init__(heads, head_dims, extra)
        channels = self.out_heads * head_dims
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        with torch.no_grad():
            self.conv.weight.copy_(gaussian_taps().expand_as(self.conv.weight))
            self.conv.bias.zero_()

    def _select(self, index: Tensor) -> None:
        slice_axes([Axis(self.conv, 'weight'), Axis(self.conv, 'bias')],
                   _channels(index, self.head_dims))

    def derive(self, weight: Tensor, bias: Optional[Tensor], columns: Tensor,
               chosen: Optional[Tensor] = None) -> Derived:
        """As they are."""
        return dict(value=weight, bias=bias, columns=columns)

    def run(self, x: Tensor, derived: Derived, hw: Tuple[int, int]) -> Tensor:
        """Values, exchange with the extra tokens, convolution."""
        return self.mix(F.linear(x, derived['value'], derived['bias']), hw)

    def mix(self, v: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Values (B, N, C) to the same shape."""
        if self.exchange is None:
            return self.conv(_to_map(v, hw)).flatten(2).transpose(1, 2)
        extra, patches = self._split(v)
        extra, given = self.exchange(extra, patches.mean(1, keepdim=True))
        patches = self.conv(_to_map(patches + given, hw)).flatten(2).transpose(1, 2)
        return torch.cat([extra, patches], 1)

    def macs_per_head(self, dims: int, tokens: int, patches: int) -> int:
        """``d (D N + 9 P)``."""
        return self.head_dims * (dims * tokens + 9 * patches)


class EnsembledDepthwiseHeads(DepthwiseHeads):
    """Ensembled DW: one head, mixed of the values and projections of all (equation 13).

    The mixture is a softmax over the heads at temperature 0.01, even at the start.
    """

    ensembled, reads_values = True, False

    def derive(self, weight: Tensor, bias: Optional[Tensor], columns: Tensor,
               chosen: Optional[Tensor] = None) -> Derived:
        """One head's weights."""
        shares = self.shares(chosen)
        return dict(value=_mix(shares, weight, 0), columns=_mix(shares, columns, 1),
                    bias=None if bias is None else _mix(shares, bias, 0))


class ConvHeads(HeadOperator):
    """Conv[all]: the values' weights folded into full 3 x 3 kernels (equation 9).

    The kernel of a head is the outer product of nine taps, which are learned and start as a
    Gaussian, and its value weights. The values' bias is zero outside of the map, as the values
    are in :class:`DepthwiseHeads`, which has the same output if its kernels are these taps.
    """

    def __init__(self, heads: int, head_dims: int, extra: int = 0) -> None:
        super().__init__(heads, head_dims, extra)
        self.taps = nn.Parameter(gaussian_taps().repeat(self.out_heads, 1, 1))

    def _select(self, index: Tensor) -> None:
        slice_parameter(self, 'taps', {0: index})

    def derive(self, weight: Tensor, bias: Optional[Tensor], columns: Tensor,
               chosen: Optional[Tensor] = None) -> Derived:
        """Kernels, and the taps of each output channel."""
        taps = self.taps.repeat_interleave(self.head_dims, 0)
        return dict(value=weight, bias=bias, columns=columns, taps=taps,
                    kernel=weight[..., None, None] * taps[:, None],
                    bias_taps=None if bias is None else bias[:, None, None] * taps)

    def run(self, x: Tensor, derived: Derived, hw: Tuple[int, int]) -> Tensor:
        """Convolution of the tokens, exchange with the extra ones."""
        extra = given = None
        if self.exchange is not None:
            extra, x = self._split(x)
            mean = x.mean(1, keepdim=True)
            values = F.linear(torch.cat([extra, mean], 1), derived['value'], derived['bias'])
            extra, given = self.exchange(values[:, :-1], values[:, -1:])
        maps = F.conv2d(_to_map(x, hw), derived['kernel'], padding=1)
        if derived['bias_taps'] is not None:
            maps = maps + border_sums(derived['bias_taps'], hw)
        if given is not None:
            maps = maps + border_sums(derived['taps'], hw) * given.transpose(1, 2)[..., None]
        patches = self.activate(maps).flatten(2).transpose(1, 2)
        return patches if extra is None else torch.cat([extra, patches], 1)

    def activate(self, maps: Tensor) -> Tensor:
        """Nothing."""
        return maps

    def macs_per_head(self, dims: int, tokens: int, patches: int) -> int:
        """``d D (9 P + E + 1)``, without the last two where there are no extra tokens."""
        extra = tokens - patches
        return self.head_dims * dims * (9 * patches + (extra + 1 if extra else 0))


class SPViTHeads(ConvHeads):
    """SPViT-style: a full convolution, ensembled over the heads tap by tap, then ReLU.

    Every tap has its own softmax over the heads at temperature 0.01. The public code adds up
    taps and projections without weights, which scales the output by 81; here the taps start as a
    Gaussian and the projection is the mean over the taps, so that one head everywhere is that
    head of :class:`ConvHeads` behind a ReLU.
    """

    ensembled = True
    logits_shape = (9, )

    def derive(self, weight: Tensor, bias: Optional[Tensor], columns: Tensor,
               chosen: Optional[Tensor] = None) -> Derived:
        """One head's kernel, tap by tap."""
        shares = self.shares(chosen)
        taps = self.taps.flatten()
        mean = shares.mean(1)
        kernel = torch.stack([tap * _mix(share, weight, 0)
                              for tap, share in zip(taps, shares.T)], -1)
        derived = dict(value=_mix(mean, weight, 0), columns=_mix(mean, columns, 1), bias=None,
                       bias_taps=None, kernel=kernel.unflatten(-1, (3, 3)),
                       taps=self.taps.expand(self.head_dims, 3, 3))
        if bias is not None:
            bias_taps = torch.stack([tap * _mix(share, bias, 0)
                                     for tap, share in zip(taps, shares.T)], -1)
            derived.update(bias=_mix(mean, bias, 0), bias_taps=bias_taps.unflatten(-1, (3, 3)))
        return derived

    def activate(self, maps: Tensor) -> Tensor:
        """ReLU."""
        return maps.relu()


def _mix(shares: Tensor, weight: Tensor, dim: int) -> Tensor:
    """Sum of the heads' parts along a dimension, with their shares (s,); no matrix product."""
    parts = weight.unflatten(dim, (len(shares), -1))
    return (parts * shares.reshape(-1, *[1] * (parts.ndim - 1 - dim))).sum(dim)


def _channels(heads: Tensor, head_dims: int) -> Tensor:
    """Channels of some heads, in the order of the heads."""
    return (heads[:, None] * head_dims + torch.arange(head_dims, device=heads.device)).flatten()


#: By the names that structure files use.
OPERATORS: Dict[str, Type[HeadOperator]] = {
    'dwconv': DepthwiseHeads,
    'conv': ConvHeads,
    'ensembled-dwconv': EnsembledDepthwiseHeads,
    'spvit': SPViTHeads,
}


def head_operator(name: str) -> Type[HeadOperator]:
    """The operator of a name.

    Raises:
        ValueError: There is none of that name.
    """
    if name not in OPERATORS:
        raise ValueError(f'expected an operator for heads among {sorted(OPERATORS)}, found '
                         f'{name!r}')
    return OPERATORS[name]
