"""Replacement of attention heads by an operator (drop-in depthwise convolution, section 3)."""

import math
from functools import partial
from typing import Any, Callable, Dict, Sequence, Tuple

import torch
from mmpretrain.models.utils import MultiheadAttention
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmkcr.models.gates import BaseGate
from mmkcr.models.layers import GatedAttention, OperatorAttention, TokenGrid
from mmkcr.models.layers.head_operators import OPERATORS, head_operator
from .searchable import SearchableBackbone


class AttentionHeadSites(SearchableBackbone):
    """Sites of vision transformers with mmpretrain's ``MultiheadAttention``.

    A site is the attention of a block; its units are the heads. Heads that are not kept are
    computed by an operator, whose parameters are new and so learn in ``frozen_stages`` too. It
    works for ``VisionTransformer`` and what derives from it.

    Args:
        *args: The host backbone's arguments.
        operator (str): Of replaced heads in a supernet and in new structures: ``'dwconv'``
            (DW[all]), ``'conv'`` (Conv[all]), ``'ensembled-dwconv'`` or ``'spvit'``. A structure
            file names its own. Defaults to ``'dwconv'``.
        num_registers (int): Register tokens, put behind the class token after the position
            embedding. Defaults to 0.
        with_cp (bool): Gradient checkpointing of every block. Defaults to False.
        **kwargs: See :class:`SearchableBackbone`, and the host backbone's arguments.

    Raises:
        ValueError: Unknown operator, or a negative number of registers.
    """

    method = 'dwconv'

    def __init__(self,
                 *args: Any,
                 operator: str = 'dwconv',
                 num_registers: int = 0,
                 with_cp: bool = False,
                 **kwargs: Any) -> None:
        head_operator(operator)
        if num_registers < 0:
            raise ValueError(f'expected `num_registers` of at least 0, found {num_registers}')
        self.operator, self.num_registers, self.with_cp = operator, num_registers, with_cp
        self.grid = TokenGrid()
        if not kwargs.get('with_cls_token', True):  # that of a checkpoint is left out
            self.optional_keys = f'{self.optional_keys}|cls_token$'
        super().__init__(*args, **kwargs)
        self.patch_embed.register_forward_hook(self.grid.record)
        if with_cp:
            for layer in self.layers:
                layer.forward = partial(self._checkpointed, layer.forward)

    def _non_default_args(self, args: tuple, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        found = super()._non_default_args(args, kwargs)
        return {**found, **({'num_registers': self.num_registers} if self.num_registers else {})}

    def _prepare(self, searchable: bool) -> None:
        super()._prepare(searchable)
        self.grid.extra = self.num_extra_tokens + self.num_registers
        if self.num_registers:
            self.register_tokens = nn.Parameter(
                torch.empty(1, self.num_registers, self.embed_dims).normal_(std=1e-6))
            self.drop_after_pos.register_forward_hook(self._insert_registers)

    def _insert_registers(self, module: nn.Module, inputs: tuple, x: Tensor) -> Tensor:
        before = self.num_extra_tokens
        registers = self.register_tokens.expand(x.shape[0], -1, -1)
        return torch.cat([x[:, :before], registers, x[:, before:]], 1)

    def _format_output(self, x: Tensor, hw: Tuple[int, int]) -> Tensor:
        """As the host, without register tokens; ``out_type='raw'`` has all tokens."""
        if self.num_registers and self.out_type != 'raw':
            x = torch.cat([x[:, :self.num_extra_tokens], x[:, self.grid.extra:]], 1)
        return super()._format_output(x, hw)

    def _prepare_pos_embed(self, state_dict: Dict[str, Tensor], prefix: str, *args: Any,
                           **kwargs: Any) -> None:
        """As the host, which leaves out a class token's position at one image size only."""
        found = state_dict.get(f'{prefix}pos_embed')
        if found is not None and not self.num_extra_tokens and math.isqrt(
                found.shape[1] - 1)**2 == found.shape[1] - 1:
            state_dict[f'{prefix}pos_embed'] = found[:, 1:]
        super()._prepare_pos_embed(state_dict, prefix, *args, **kwargs)

    def _checkpointed(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return forward(x)
        return checkpoint(self._at, forward, x, self.grid.hw, use_reentrant=False)

    def _at(self, forward: Callable[[Tensor], Tensor], x: Tensor, hw: Tuple[int, int]) -> Tensor:
        with self.grid.at(hw):
            return forward(x)

    def attentions(self) -> Dict[str, nn.Module]:
        """The attention of every block, in any state, by site."""
        kinds = (MultiheadAttention, GatedAttention, OperatorAttention)
        return {name: module for name, module in self.named_modules() if isinstance(module, kinds)}

    def _find_sites(self) -> Dict[str, int]:
        return {name: module.num_heads for name, module in self.attentions().items()}

    def _operators(self, site: str) -> Sequence[str]:
        return (self.operator, *(name for name in OPERATORS if name != self.operator))

    def _gate_site(self, site: str, gate: BaseGate) -> None:
        self._exchange(site, GatedAttention(self.get_submodule(site), gate, self.operator,
                                            self.grid))

    def _slice_site(self, site: str, kept: Tensor, operator: str = 'dwconv') -> None:
        self._exchange(site, OperatorAttention(self.get_submodule(site), kept, operator,
                                               self.grid))

    def _exchange(self, site: str, attention: nn.Module) -> None:
        parent, _, name = site.rpartition('.')
        setattr(self.get_submodule(parent), name, attention)
