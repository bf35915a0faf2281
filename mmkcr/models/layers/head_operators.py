"""Operators that replace attention heads (drop-in depthwise convolution, section 3.2).

An operator has its own parameters; values and output projection stay as in the attention.

Shapes: B images, N tokens, of which E are extra tokens (class and registers) and P = h * w are
patches; D channels, s heads of d channels each; C output channels, which are s * d, or d if the
heads are ensembled into one.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core import Axis, Cost, count_params, slice_axes
from mmkcr.core.axes import along_outputs
from mmkcr.core.products import AddedLayer

#: Softmax temperature of the ensembles over heads.
ENSEMBLE_TEMPERATURE = 0.01
Derived = dict[str, Tensor | None]


def gaussian_taps() -> Tensor:
    """Normalised 3 x 3 Gaussian of sigma 1, shape (3, 3), sum 1."""
    line = torch.exp(-torch.tensor([-1., 0., 1.]).square() / 2)
    return torch.outer(line, line) / line.sum()**2


def border_sums(taps: Tensor, hw: tuple[int, int]) -> Tensor:
    """Output (1, C, h, w) of kernels (C, 3, 3) on a map of ones that is padded with zeros."""
    height, width = hw
    # a sum over shifts of the map, and no convolution that a count of MACs would see
    inside = F.pad(taps.new_ones(1, 1, height, width), (1, 1, 1, 1))
    return sum(inside[..., y:y + height, x:x + width] * taps[None, :, y, x, None, None]
               for y in range(3) for x in range(3))


class TokenExchange(nn.Module):
    """Exchange between E extra tokens and the patches, by two learned scalars per token and head.

    An extra token adds the mean of the patches' values, times the first scalar. Before the
    convolution each patch adds its value, times the second. Register tokens are treated as the
    class token is in the public code.
    """

    def __init__(self, extra: int, heads: int) -> None:
        super().__init__()
        # at the start an extra token adds the patches' mean, as if from uniform attention, and the
        # patches add nothing
        self.from_patches = nn.Parameter(torch.ones(extra, heads))
        self.to_patches = nn.Parameter(torch.zeros(extra, heads))

    def forward(self, extra: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
        """New extra tokens (B, E, C), and the term (B, 1, C) that each patch adds.

        The arguments are the extra tokens' values (B, E, C), and the patches' mean value (B, 1, C).
        """
        repeat = extra.shape[-1] // self.from_patches.shape[1]  # channels of a head
        taken = self.from_patches.repeat_interleave(repeat, 1) * mean
        given = (self.to_patches.repeat_interleave(repeat, 1) * extra).sum(1, keepdim=True)
        return extra + taken, given


class HeadOperator(AddedLayer):
    """Computes the output of heads from the tokens without attention.

    A subclass has two methods. ``run(x, derived, hw)`` turns tokens (B, N, D), the extra ones
    first, into the input of the projection, (B, N, C); ``derived`` are the results of
    :meth:`derive`, and ``hw`` is the token grid. ``macs_per_head(dims, tokens, patches)`` are the
    MACs of one output head, without the output projection, by D, N and P.

    Args:
        heads (int): s.
        head_dims (int): d.
        extra (int): E. Defaults to 0.
    """

    #: Whether the heads are mixed into one.
    ensembled: bool = False
    #: Whether its weights are as it applies them, and not derived from others.
    plain: bool = False
    #: Whether it works on the heads' values, by ``mix(values, hw)``, and not on their weights.
    reads_values: bool = False
    #: Shape of each head's ensemble logits: () for one logit, (9,) for one per tap.
    logits_shape: tuple[int, ...] = ()

    def __init__(self, heads: int, head_dims: int, extra: int = 0) -> None:
        super().__init__()
        self.heads, self.head_dims = heads, head_dims
        self.exchange = TokenExchange(extra, self.count_out(self.heads)) if extra else None
        if self.ensembled:
            self.logits = nn.Parameter(torch.ones(heads, *self.logits_shape))

    def derive(self, weight: Tensor | None, bias: Tensor | None, columns: Tensor,
               chosen: Tensor | None = None) -> Derived:
        """Compute the weights that do not depend on the image: as they are, or of one head.

        Args:
            weight, bias (Tensor, optional): Of the values, (s * d, D) and (s * d,).
            columns (Tensor): Of the output projection, (D, s * d).
            chosen (Tensor, optional): How far each head is replaced, (s,) in [0, 1]; an ensemble is
                over the heads as far as they are. Defaults to None: over all.

        Returns:
            dict: ``value``, ``bias``, ``columns`` (D, C) and, for full convolutions, ``kernel``
            (C, D, 3, 3), ``taps`` and ``bias_taps`` (C, 3, 3).
        """
        if self.ensembled:
            shares = self.shares(chosen).reshape(self.heads, -1).mean(1)  # over the taps, if any
            weight, bias = _mix(shares, weight, 0), _mix(shares, bias, 0)
            columns = _mix(shares, columns, 1)
        return dict(value=weight, bias=bias, columns=columns)

    def macs(self, heads: Cost, dims: int, tokens: int, patches: int) -> Cost:
        """MACs if ``heads`` heads are replaced, by D (``dims``), N (``tokens``) and ``patches``."""
        return self.count_out(heads) * self.macs_per_head(dims, tokens, patches)

    @property
    def _mixed(self) -> int:
        """Ensemble logits of one head."""
        return math.prod(self.logits_shape) if self.ensembled else 0

    def params(self, heads: Cost) -> Cost:
        """Parameters of the operator if ``heads`` heads are replaced."""
        # ensemble logits grow with the replaced heads, all else with the output heads
        weights = (count_params(self) - self._mixed * self.heads) // self.count_out(self.heads)
        return self.count_out(heads) * weights + heads * self._mixed

    def folded_params(self, heads: Cost, row: int, column: int) -> Cost:
        """Parameters that folding adds if ``heads`` heads are replaced; negative if it saves.

        One head's values have ``row`` parameters, its columns of the output projection ``column``.
        """
        return (self.count_out(heads) - heads) * (row + column) - heads * self._mixed

    def count_out(self, heads: Cost) -> Cost:
        """Number of output heads if ``heads`` heads are replaced."""
        if not self.ensembled:
            return heads
        return heads.clamp(max=1) if isinstance(heads, Tensor) else min(heads, 1)

    def select(self, index: Tensor) -> 'HeadOperator':
        """Keep only the given heads, int64 of shape (s',), in place."""
        self.heads = len(index)
        # of one output head only the logits exist once per replaced head; what is absent is left
        axes = [Axis(self, 'logits')] if self.ensembled else [
            Axis(self.exchange, 'from_patches', 1), Axis(self.exchange, 'to_patches', 1),
            Axis(self, 'taps'), *along_outputs(getattr(self, 'conv', None), inner=self.head_dims)]
        slice_axes(axes, index)
        return self

    def shares(self, chosen: Tensor | None) -> Tensor:
        """Share of every head in the ensemble, shape (s, *logits_shape), with sum 1 over heads."""
        logits = self.logits / ENSEMBLE_TEMPERATURE
        if chosen is not None:
            # softmax(logits + log(chosen)) weights every head by how far it is replaced; with no
            # head chosen all are used, as a softmax over -inf alone would be nan
            used = (chosen > 0) | (chosen <= 0).all()
            log = chosen.masked_fill(chosen <= 0, 1).log().masked_fill(~used, -torch.inf)
            logits = logits + log.reshape(-1, *[1] * (logits.ndim - 1))
        return logits.softmax(0)

    def _split(self, v: Tensor) -> tuple[Tensor, Tensor]:
        extra = self.exchange.from_patches.shape[0]
        return v[:, :extra], v[:, extra:]


def _to_map(patches: Tensor, hw: tuple[int, int]) -> Tensor:
    """(B, P, C) to (B, C, h, w), as a view with channels last in memory."""
    return patches.reshape(patches.shape[0], hw[0], hw[1], patches.shape[-1]).permute(0, 3, 1, 2)


class DepthwiseHeads(HeadOperator):
    """DW[all]: a depthwise 3 x 3 convolution of the values (equation 11).

    It has stride 1, zero padding and a bias, but no activation, norm or scale. It starts as a
    normalised Gaussian of sigma 1 with bias 0.
    """

    plain = reads_values = True

    def __init__(self, heads: int, head_dims: int, extra: int = 0) -> None:
        super().__init__(heads, head_dims, extra)
        channels = self.count_out(self.heads) * head_dims
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        with torch.no_grad():
            self.conv.weight.copy_(gaussian_taps().expand_as(self.conv.weight))
            self.conv.bias.zero_()

    def run(self, x: Tensor, derived: Derived, hw: tuple[int, int]) -> Tensor:
        """Compute the values by ``derived`` weights of tokens ``x`` (B, N, D), exchange with the
        extra tokens, and convolve on the grid ``hw``.
        """
        return self.mix(F.linear(x, derived['value'], derived['bias']), hw)

    def mix(self, v: Tensor, hw: tuple[int, int]) -> Tensor:
        """Exchange and convolution of values (B, N, C), to the same shape."""
        if self.exchange is None:
            return self.conv(_to_map(v, hw)).flatten(2).transpose(1, 2)
        extra, patches = self._split(v)
        extra, given = self.exchange(extra, patches.mean(1, keepdim=True))
        patches = self.conv(_to_map(patches + given, hw)).flatten(2).transpose(1, 2)
        return torch.cat([extra, patches], 1)

    def macs_per_head(self, dims: int, tokens: int, patches: int) -> int:
        """``d (D N + 9 P)``, by D (``dims``), N (``tokens``) and P (``patches``): values of all
        tokens, and nine taps on the patches.
        """
        return self.head_dims * (dims * tokens + 9 * patches)


class EnsembledDepthwiseHeads(DepthwiseHeads):
    """Ensembled DW: one head that mixes the values and projections of all heads (equation 13).

    The mixture is a softmax over the heads at temperature 0.01, uniform at the start.
    """

    ensembled, plain, reads_values = True, False, False

    def fold(self, derived: Derived) -> DepthwiseHeads:
        """The one head, without the mixture."""
        one = DepthwiseHeads(1, self.head_dims)
        one.conv, one.exchange = self.conv, self.exchange
        return one


class ConvHeads(HeadOperator):
    """Conv[all]: the values' weights folded into full 3 x 3 kernels (equation 9).

    The kernel of a head is the outer product of its value weights and nine learned taps, which
    start as a Gaussian. The values' bias is zero outside the map, like the values in
    :class:`DepthwiseHeads`. So that class has the same output if its kernels are these taps.
    """

    def __init__(self, heads: int, head_dims: int, extra: int = 0) -> None:
        super().__init__(heads, head_dims, extra)
        self.taps = nn.Parameter(gaussian_taps().repeat(self.count_out(self.heads), 1, 1))
        self.kernel: nn.Parameter | None = None  # these two once it is folded
        self.bias_taps: nn.Parameter | None = None

    def derive(self, weight: Tensor | None, bias: Tensor | None, columns: Tensor,
               chosen: Tensor | None = None) -> Derived:
        """The folded kernels, and the taps of each output channel.

        Arguments are those of :meth:`HeadOperator.derive`: ``weight`` and ``bias`` of the values,
        ``columns`` of the projection, and how far heads are ``chosen``.
        """
        derived = super().derive(weight, bias, columns, chosen)
        if self.plain:
            return dict(derived, taps=self.taps, kernel=self.kernel, bias_taps=self.bias_taps)
        return dict(derived, taps=self.taps.repeat_interleave(self.head_dims, 0),
                    kernel=self._with_taps(weight, chosen),
                    bias_taps=None if bias is None else self._with_taps(bias, chosen))

    def _with_taps(self, rows: Tensor, chosen: Tensor | None) -> Tensor:
        """Each of the values' channels (s d, ...) times its head's taps, (C, ..., 3, 3)."""
        taps = self.taps.repeat_interleave(self.head_dims, 0)
        return rows[..., None, None] * taps.unflatten(0, (-1, *[1] * (rows.ndim - 1)))

    def run(self, x: Tensor, derived: Derived, hw: tuple[int, int]) -> Tensor:
        """Convolve the patches of tokens ``x`` (B, N, D) by ``derived`` kernels on the grid ``hw``,
        and exchange with the extra tokens.
        """
        extra = given = None
        if self.exchange is not None:
            extra, x = self._split(x)
            mean = x.mean(1, keepdim=True)  # values are affine in x: the mean commutes with them
            values = F.linear(torch.cat([extra, mean], 1), derived['value'], derived['bias'])
            extra, given = self.exchange(values[:, :-1], values[:, -1:])
        maps = F.conv2d(_to_map(x, hw), derived['kernel'], padding=1)
        # constants that every patch's value would have added before the convolution: the bias, and
        # `given` of the extra tokens; the zero padding lacks them
        if derived['bias_taps'] is not None:
            maps = maps + border_sums(derived['bias_taps'], hw)
        if given is not None:
            maps = maps + border_sums(derived['taps'], hw) * given.transpose(1, 2)[..., None]
        patches = self.activate(maps).flatten(2).transpose(1, 2)
        return patches if extra is None else torch.cat([extra, patches], 1)

    def activate(self, maps: Tensor) -> Tensor:
        """The identity; a subclass may have an activation."""
        return maps

    def fold(self, derived: Derived) -> 'ConvHeads':
        """This operator with the kernels themselves, without taps and values."""
        self.kernel = nn.Parameter(derived['kernel'])
        if derived['bias_taps'] is not None:
            self.bias_taps = nn.Parameter(derived['bias_taps'])
        # what the patches add from the extra tokens is convolved by the taps alone
        self.taps = None if self.exchange is None else nn.Parameter(derived['taps'].clone())
        self.heads, self.ensembled, self.plain = self.count_out(self.heads), False, True
        self._parameters.pop('logits', None)
        return self

    def folded_params(self, heads: Cost, row: int, column: int) -> Cost:
        """Kernels of nine taps for the values; the values stay if they are exchanged.

        Arguments are those of :meth:`HeadOperator.folded_params`: replaced ``heads``, and
        parameters of a head's ``row`` and ``column``.
        """
        dims, exchanged = column // self.head_dims, self.exchange is not None
        biased = row > self.head_dims * dims
        kernels = 9 * self.head_dims * (dims + biased + exchanged) - 9  # instead of one head's taps
        return super().folded_params(heads, row, column) + self.count_out(heads) * (
            kernels if exchanged else kernels - row)

    def macs_per_head(self, dims: int, tokens: int, patches: int) -> int:
        """``d D (9 P + E + 1)``, by D (``dims``), N (``tokens``) and P (``patches``); without
        extra tokens (E = 0) it is ``9 d D P``.
        """
        extra = tokens - patches
        return self.head_dims * dims * (9 * patches + (extra + 1 if extra else 0))


class SPViTHeads(ConvHeads):
    """SPViT-style: a full convolution, ensembled over the heads tap by tap, then ReLU.

    Every tap has its own softmax over the heads at temperature 0.01. The public code adds up taps
    and projections without weights, which scales the output by 81. Here the taps start as a
    Gaussian, and the projection is the mean over the taps. So if all taps choose one head, it
    computes as :class:`ConvHeads` and a ReLU.
    """

    ensembled = True
    logits_shape = (9, )

    def _with_taps(self, rows: Tensor, chosen: Tensor | None) -> Tensor:
        """One head's channels, each tap of its own mixture, (d, ..., 3, 3)."""
        mixed = [tap * _mix(share, rows, 0)
                 for tap, share in zip(self.taps.flatten(), self.shares(chosen).T)]
        return torch.stack(mixed, -1).unflatten(-1, (3, 3))

    def activate(self, maps: Tensor) -> Tensor:
        """ReLU."""
        return maps.relu()


def _mix(shares: Tensor, weight: Tensor | None, dim: int) -> Tensor | None:
    """Weighted sum of the heads' parts along ``dim``, with shares (s,); not a matrix product."""
    if weight is None:
        return None
    parts = weight.unflatten(dim, (len(shares), -1))
    return (parts * shares.reshape(-1, *[1] * (parts.ndim - 1 - dim))).sum(dim)


#: Operators by the names that structure files use.
OPERATORS: dict[str, type[HeadOperator]] = {
    'dwconv': DepthwiseHeads,
    'conv': ConvHeads,
    'ensembled-dwconv': EnsembledDepthwiseHeads,
    'spvit': SPViTHeads,
}

#: Behind an operator's name in structure files: with plain weights, see `OperatorAttention.fold`.
FOLDED = '-folded'


def folded_name(name: str) -> str:
    """Name of an operator once it is folded; DW[all] keeps its name, as its weights are plain."""
    plain = OPERATORS.get(name.removesuffix(FOLDED), HeadOperator).plain
    return name if plain or name.endswith(FOLDED) else f'{name}{FOLDED}'


def head_operator(name: str) -> type[HeadOperator]:
    """The operator class of a name, or a ``ValueError``."""
    if name not in OPERATORS:
        raise ValueError(f'expected an operator for heads among {sorted(OPERATORS)}, found '
                         f'{name!r}')
    return OPERATORS[name]
