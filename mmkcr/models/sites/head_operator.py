"""Operator of a head: attention, or a convolution in its place (drop-in depthwise convolution)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from mmkcr.core import Axis, BaseGate, Cost, SiteEntry, Unsupported, count_params
from mmkcr.core.axes import along_inputs
from mmkcr.lazy import is_of
from mmkcr.models.layers.head_operators import (
    OPERATORS,
    HeadOperator,
    folded_name,
    head_operator,
)
from mmkcr.models.layers.operator_attention import (
    MixedAttention,
    OperatorAttention,
    TokenGrid,
    dense_places,
)
from .base import AttentionSite


class HeadOperatorSite(AttentionSite):
    """A unit is a head; an operator computes the heads that are not kept.

    The operator's parameters are new, so they learn in frozen stages too. The patch embedding must
    return the height and width of the grid, as in mmpretrain's ``VisionTransformer``.
    """

    kind = 'head_operator'
    options = ('operator', )
    has_own_macs = True
    operator: str = 'dwconv'

    @classmethod
    def of(cls, host: nn.Module, view: Any, operator: str = 'dwconv') -> 'HeadOperatorSite':
        """The heads of a layer, with the operator of replaced ones in searches and structures."""
        head_operator(operator)
        tells_grid = hasattr(host, 'num_extra_tokens') and hasattr(host, 'patch_embed')
        if not tells_grid or hasattr(host, 'random_masking'):  # MAE computes the visible patches
            raise Unsupported(f'`{type(host).__name__}` does not tell the grid of its tokens')
        if not is_of(host.get_submodule(view.path), 'mmpretrain.models.utils.MultiheadAttention'):
            raise Unsupported(f'its attention has positions or norms of its own at `{view.path}`')
        site = cls(host, view, view.path, view.heads)
        site.operator = operator
        return site

    @property
    def grid(self) -> TokenGrid:
        """The token grid of the host, recorded by its patch embedding."""
        if not hasattr(self.host, 'grid'):
            self.host.grid = TokenGrid(self.host.num_extra_tokens)
            self.host.patch_embed.register_forward_hook(self.host.grid.record)
        return self.host.grid

    def axes(self) -> list[Axis]:
        """The input of the output projection: replaced heads stay there, from an operator."""
        return [along_inputs(self.owner.proj, inner=self.view.width)]

    def claims(self) -> list[Axis]:
        """All of the projections, which are replaced."""
        return [Axis(layer, 'weight', dim) for layer in (self.owner.qkv, self.owner.proj)
                for dim in (0, 1)]

    def operators(self) -> tuple[str, ...]:
        """Operators for the dropped heads; the first one is of new structures, after a search
        folded.
        """
        first = self.operator if self.gate is None else folded_name(self.operator)
        return tuple(dict.fromkeys([first, *OPERATORS, *map(folded_name, OPERATORS)]))

    def check(self, kept: Tensor) -> None:
        """Accept any selection of heads, also an empty one."""

    def attach(self, gate: BaseGate) -> None:
        """Mix attention and operator by the gate."""
        self.host.set_submodule(self.path, MixedAttention(self.owner, self.operator, self.grid))
        super().attach(gate)

    def slice_units(self, kept: Tensor, optimizer: Optimizer | None = None) -> Tensor:
        """Raise a ``ValueError``: operators are chosen at the end of a search."""
        raise ValueError(f'expected a gate that chooses at the end of a search at `{self.name}`, '
                         f'found one that slices while it trains')

    def slice_to(self, kept: Tensor, operator: str | None = None) -> None:
        """Replace the heads that are not kept."""
        owner = self.owner
        self.detach()
        self.host.set_submodule(self.path, OperatorAttention(
            owner, kept.tolist(), operator or self.operator, self.grid))
        self._kept = kept

    def has_plain_form(self) -> bool:
        """Hosts have no operator in the place of attention."""
        return False

    def inherit_dense(self, state: dict[str, Tensor], prefix: str) -> bool:
        """Cut the dense layer's projections to the heads that stay; the operator keeps its values.
        """
        start = f'{prefix}{self.path}.'
        dense = state.get(f'{start}qkv.weight')
        if dense is None or dense.shape[0] != 3 * self.total * self.view.width:
            return False
        rows, columns = dense_places(self.kept.to(dense.device), self.total, self.view.width)
        for key, dim, places in (('qkv.weight', 0, rows), ('qkv.bias', 0, rows),
                                 ('proj.weight', 1, columns)):
            if (value := state.get(f'{start}{key}')) is not None:
                state[f'{start}{key}'] = value.index_select(dim, places)
        for key, value in nn.Module.state_dict(self.owner).items():
            state.setdefault(f'{start}{key}', value)
        return True

    @property
    def _operator_to_count(self) -> HeadOperator:
        """The layer's operator; for a dense layer, a new one of all heads, to count with."""
        return getattr(self.owner, 'operator', None) or head_operator(self.operator)(
            self.total, self.view.width, self.grid.extra)

    def macs(self, size: Cost, input_shape: Sequence[int]) -> Cost:
        """MACs of projections, attention products and operator, with ``size`` attention heads."""
        (_, tokens, dims), width, operator = input_shape, self.view.width, self._operator_to_count
        patches, replaced = tokens - self.grid.extra, self.total - size
        attention = size * width * tokens * (3 * dims + 2 * tokens)  # q, k, v, and two products
        columns = width * (size + operator.count_out(replaced))  # inputs of the output projection
        return attention + operator.macs(replaced, dims, tokens, patches) + columns * dims * tokens

    def params(self, size: Cost) -> Cost:
        """Parameters; a search's operator is counted as slimming leaves it: folded."""
        owner, operator, replaced = self.owner, self._operator_to_count, self.total - size
        mixed = filter(None, (self.holder, getattr(owner, 'operator', None)))
        row = count_params(owner.qkv) // (3 * self.total)  # the queries of one head, or its keys
        column = owner.proj.weight.numel() // self.total
        folding = 0 if self.gate is None else operator.folded_params(replaced, row, column)
        return (count_params(owner) - sum(map(count_params, mixed)) - 2 * row * replaced
                + operator.params(replaced) + folding)

    def fold(self, entry: SiteEntry) -> SiteEntry:
        """Give a replaced layer plain weights; returns its entry in a structure."""
        if not isinstance(self.owner, OperatorAttention) or entry.operator is None:
            return entry
        self.owner.fold()
        return dataclasses.replace(entry, operator=folded_name(entry.operator))
