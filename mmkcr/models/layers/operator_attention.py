"""Attention some of whose heads are, or may be, computed by an operator.

Blockwise and scattered replacement (drop-in depthwise convolution, section 3.2) are one module.
Shapes as in :mod:`mmkcr.models.layers.head_operators`; a is the number of heads that stay.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core import Axis, slice_axes
from mmkcr.functional.pivots import others
from .head_operators import FOLDED, Derived, HeadOperator, head_operator
from .take_over import take_over


class TokenGrid:
    """Token grid of the batch.

    Args:
        extra (int): E, the number of tokens before the patches. Defaults to 0.
        hw (tuple[int, int], optional): Rows h and columns w; :meth:`record` sets them. Defaults to
            None.
    """

    def __init__(self, extra: int = 0, hw: tuple[int, int] | None = None) -> None:
        self.extra, self.hw = extra, hw

    def record(self, module: nn.Module, inputs: tuple, outputs: tuple) -> None:
        """Forward hook of a patch embedding ``module`` with ``outputs`` of tokens and (h, w); its
        ``inputs`` are not used.
        """
        self.hw = tuple(outputs[1])


def dense_places(kept: Tensor, heads: int, head_dims: int) -> tuple[Tensor, Tensor]:
    """Rows of the dense ``qkv`` and columns of the dense ``proj`` in an :class:`OperatorAttention`.

    Args:
        kept (Tensor): Heads that stay attention, (a,), int64, ascending.
        heads (int): H.
        head_dims (int): d.

    Returns:
        tuple[Tensor, Tensor]: Rows (3 a d + (H - a) d,) and columns (H d,).
    """
    dims = heads * head_dims
    channels = torch.arange(dims, device=kept.device).view(heads, head_dims)
    stay, leave = (channels[some].flatten() for some in (kept, others(kept, heads)))
    both = torch.cat([stay, leave])
    # rows of the dense qkv: q at 0, k at D, v at 2 D; only v is left of the replaced heads
    return torch.cat([stay, stay + dims, both + 2 * dims]), both


class _AttentionParts(nn.Module):
    """A dense attention's parts and attributes, so that the host's keys and callers stay valid."""

    def __init__(self, attn: nn.Module, grid: TokenGrid) -> None:
        super().__init__()
        vars(self).update(vars(take_over(nn.Module, attn, ('head_operator', 'operator'))))
        self.grid = grid

    def _new_operator(self, name: str, heads: int) -> HeadOperator:
        operator = head_operator(name)(heads, self.head_dims, self.grid.extra)
        weight = self.proj.weight  # for device and dtype; the new operator is never frozen
        return operator.to(weight.device, weight.dtype).train(self.training)

    def _attend(self, qkv: Tensor) -> Tensor:
        """Softmax attention of some a heads, (B, N, 3 * a * d) to (B, N, a * d)."""
        # (B, N, 3, a, d) to (3, B, a, N, d)
        q, k, v = qkv.unflatten(-1, (3, -1, self.head_dims)).permute(2, 0, 3, 1, 4)
        out = self.scaled_dot_product_attention(
            q, k, v, dropout_p=self.attn_drop if self.training else 0.)
        return out.transpose(1, 2).flatten(2)

    def _rows(self, start: int, stop: int | None) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of some rows of ``qkv``."""
        if not isinstance(self.qkv, nn.Linear):  # folded, and no head is kept
            return None, None
        bias = self.qkv.bias
        return self.qkv.weight[start:stop], None if bias is None else bias[start:stop]

    def _finish(self, out: Tensor) -> Tensor:
        return self.out_drop(self.gamma1(self.proj_drop(out)))


class OperatorAttention(_AttentionParts):
    """Attention for the kept heads and an operator for the others, with inherited weights.

    The rows of ``qkv`` are q, k and v of the kept heads, then v of the replaced heads. The columns
    of ``proj`` belong to the kept heads, then to the replaced heads.

    Args:
        attn (MultiheadAttention | MixedAttention): Has H heads. Its tensors are taken over; do not
            use it afterwards.
        kept (Sequence[int]): Heads that stay attention; none is blockwise replacement.
        operator (str): Operator of the other heads, that of a ``MixedAttention``, see
            :data:`~mmkcr.models.layers.head_operators.OPERATORS`; with ``'-folded'`` behind it,
            its weights are plain, see :meth:`fold`.
        grid (TokenGrid): Token grid of the backbone.
    """

    def __init__(self, attn: nn.Module, kept: Sequence[int], operator: str,
                 grid: TokenGrid) -> None:
        super().__init__(attn, grid)
        stay = torch.tensor(sorted(kept), dtype=torch.int64, device=self.proj.weight.device)
        replaced = others(stay, self.num_heads)
        operator, plain = operator.removesuffix(FOLDED), operator.endswith(FOLDED)
        self.operator = None
        # a searched operator was trained and is taken over; that of a dense attention is new
        if len(replaced) and isinstance(attn, MixedAttention):
            if operator != attn.operator_name:
                raise ValueError(f'expected heads computed by `{attn.operator_name}`, as in the '
                                 f'search, found `{operator}`')
            self.operator = attn.operator.select(replaced)
        elif len(replaced):
            self.operator = self._new_operator(operator, len(replaced))
        rows, columns = dense_places(stay, self.num_heads, self.head_dims)
        slice_axes([Axis(self.qkv, 'weight'), Axis(self.qkv, 'bias')], rows)
        slice_axes([Axis(self.proj, 'weight', 1)], columns)
        self._attended = 3 * len(stay) * self.head_dims  # rows of qkv that attention uses
        if plain:
            self.fold()

    def _derive(self) -> Derived:
        rows = self._attended
        return self.operator.derive(*self._rows(rows, None), self.proj.weight[:, rows // 3:])

    @torch.no_grad()
    def fold(self) -> 'OperatorAttention':
        """Replace ensembles and derived kernels by plain weights, for good; outputs stay the same.

        Ensembled DW becomes a depthwise convolution of one head, Conv[all] and SPViT-style full
        convolutions. Folding twice is folding once. Training goes on from the plain weights.
        """
        if self.operator is None or self.operator.plain:
            return self
        derived = self._derive()
        self.operator = operator = self.operator.fold(derived).train(self.training)
        values = operator.reads_values or operator.exchange is not None
        weight, bias = self._rows(0, self._attended)
        if values:
            weight = torch.cat([weight, derived['value']])
            bias = None if bias is None else torch.cat([bias, derived['bias']])
        # a layer without rows would have parameters without gradients
        self.qkv = _with_weights(self.qkv, weight, bias) if len(weight) else nn.Identity()
        columns = torch.cat([self.proj.weight[:, :self._attended // 3], derived['columns']], 1)
        self.proj = _with_weights(self.proj, columns, self.proj.bias)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to (B, N, D)."""
        rows, operator = self._attended, self.operator
        # qkv and proj are called as modules where that is possible, so that hooks on them run
        if operator is None or operator.reads_values:
            qkv = attended = values = self.qkv(x)
            # with nothing to separate there is no slice, which an ONNX file would copy
            if rows and operator is not None:
                attended, values = qkv.split((rows, qkv.shape[-1] - rows), -1)
            parts = [self._attend(attended)] if rows else []
            parts += [] if operator is None else [operator.mix(values, self.grid.hw)]
            return self._finish(self.proj(_joined(parts)))
        weight, derived = self.proj.weight, self._derive()
        parts = [self._attend(F.linear(x, *self._rows(0, rows)))] if rows else []
        parts.append(operator.run(x, derived, self.grid.hw))
        if operator.ensembled:  # its d columns replace those of all replaced heads
            weight = torch.cat([weight[:, :rows // 3], derived['columns']], 1)
        return self._finish(F.linear(_joined(parts), weight, self.proj.bias))


def _with_weights(layer: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Give a linear layer other weights, trained if its own are."""
    layer.out_features, layer.in_features = weight.shape
    trained = layer.weight.requires_grad
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=trained)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=layer.bias.requires_grad)
    return layer


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)


class MixedAttention(_AttentionParts):
    """Supernet attention: every head is a mixture of attention and operator (equation 18).

    The gate's mask m is 1 where a head stays attention. The heads' outputs are mixed before the
    projection: ``m * attention + (1 - m) * operator``. An ensembled operator has a projection of
    its own. It ensembles the heads as far as they are replaced, and its output is weighted by the
    largest 1 - m. The gate belongs to the layer's site: ``head_operator.gate``.
    """

    def __init__(self, attn: nn.Module, operator: str, grid: TokenGrid) -> None:
        super().__init__(attn, grid)
        self.operator_name = operator
        self.operator = self._new_operator(operator, self.num_heads)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to (B, N, D)."""
        keep = self.head_operator.gate().to(x.dtype)
        attended = self._attend(self.qkv(x))
        # nothing is replaced; in training the gate still needs the gradient of the operator's part
        if not self.training and bool((keep == 1).all()):
            return self._finish(self.proj(attended))
        derived = self.operator.derive(*self._rows(2 * self.embed_dims, None), self.proj.weight,
                                       1 - keep)
        replaced = self.operator.run(x, derived, self.grid.hw)
        mask = keep.repeat_interleave(self.head_dims)  # (D,)
        if not self.operator.ensembled:
            return self._finish(self.proj(mask * attended + (1 - mask) * replaced))
        strength = (1 - keep).max()
        return self._finish(self.proj(mask * attended)
                            + strength * F.linear(replaced, derived['columns']))
