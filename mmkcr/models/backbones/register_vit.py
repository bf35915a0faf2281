"""mmpretrain's ViT with register tokens, DINOv2's names and gradient checkpointing."""

import math
from typing import Any

import torch
from mmpretrain.models import VisionTransformer
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmkcr.models.layers.operator_attention import TokenGrid
from mmkcr.models.layers.take_over import take_over

_ZOO = VisionTransformer.arch_zoo


class CheckpointedEncoderLayer(TransformerEncoderLayer):
    """A block with gradient checkpointing, recomputed on the token grid of its own batch."""

    grid: TokenGrid

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to (B, N, D)."""
        if not (self.training and torch.is_grad_enabled()):
            # another batch may have run before the backward pass, so the grid is an argument
            return super().forward(x)
        return checkpoint(self._at, x, self.grid.hw, use_reentrant=False)

    def _at(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        before, self.grid.hw = self.grid.hw, hw
        try:
            return super().forward(x)
        finally:
            self.grid.hw = before


class RegisterVisionTransformer(VisionTransformer):
    """mmpretrain's ``VisionTransformer`` for foundation models.

    Args:
        *args, **kwargs: See :class:`mmpretrain.models.VisionTransformer`.
        num_registers (int): Register tokens, put behind the class token after the position
            embedding. Defaults to 0.
        with_cp (bool): Gradient checkpointing of every block. Defaults to False.
    """

    arch_zoo = {**_ZOO, 'dinov2-base': _ZOO['base'], 'dinov2-large': _ZOO['large']}

    def __init__(self, *args: Any, num_registers: int = 0, with_cp: bool = False,
                 **kwargs: Any) -> None:
        self.num_registers = num_registers
        self.grid = TokenGrid()
        super().__init__(*args, **kwargs)
        self.grid.extra = self.num_extra_tokens + num_registers
        # layers see tokens, not their grid: the patch embedding records it for them
        self.patch_embed.register_forward_hook(self.grid.record)
        if num_registers:
            self.register_tokens = nn.Parameter(
                torch.empty(1, num_registers, self.embed_dims).normal_(std=1e-6),
                requires_grad=self.frozen_stages <= 0)  # as the host's tokens
            self.drop_after_pos.register_forward_hook(self._insert_registers)
        if with_cp:
            for index, layer in enumerate(self.layers):
                self.layers[index] = take_over(CheckpointedEncoderLayer, layer, grid=self.grid)

    def get_layer_depth(self, param_name: str, prefix: str = '') -> tuple[int, int]:
        """Like the host, with register tokens in the first layer, as the class token."""
        first = f'{prefix}register_tokens'
        return super().get_layer_depth(f'{prefix}cls_token' if param_name == first else param_name,
                                       prefix)

    def _insert_registers(self, module: nn.Module, inputs: tuple, x: Tensor) -> Tensor:
        # behind the class token, and after the position embedding, which has no entry for registers
        before = self.num_extra_tokens
        registers = self.register_tokens.expand(x.shape[0], -1, -1)
        return torch.cat([x[:, :before], registers, x[:, before:]], 1)

    def _format_output(self, x: Tensor, hw: tuple[int, int]) -> Tensor:
        """Like the host, without register tokens; ``out_type='raw'`` returns all tokens."""
        if self.num_registers and self.out_type != 'raw':
            x = torch.cat([x[:, :self.num_extra_tokens], x[:, self.grid.extra:]], 1)
        return super()._format_output(x, hw)

    def _prepare_pos_embed(self, state_dict: dict[str, Tensor], prefix: str, *args: Any,
                           **kwargs: Any) -> None:
        """Like the host, but drop a class token's position at any image size, not only at one."""
        table = state_dict.get(f'{prefix}pos_embed')
        # the host compares with its own number of patches; here N - 1 being a square is the sign,
        # unless the positions are as many as this network's own (5 x 2 patches are 3 x 3 + 1)
        if table is not None and not self.num_extra_tokens and (
                table.shape != self.pos_embed.shape) and math.isqrt(
                    table.shape[1] - 1)**2 == table.shape[1] - 1:
            state_dict[f'{prefix}pos_embed'] = table[:, 1:]
        super()._prepare_pos_embed(state_dict, prefix, *args, **kwargs)
