"""The position embedding of a ViT at the size that it is deployed for."""

import copy
from typing import Sequence

import torch
from mmpretrain.models import VisionTransformer
from torch import nn


def bake_positions(model: nn.Module, input_shape: Sequence[int]) -> nn.Module:
    """A copy of a model whose ViT needs not resize its position embedding at one image size.

    At that size outputs are those of the model; at others the embedding is resized from it.

    Args:
        model (nn.Module): A task model or backbone.
        input_shape (Sequence[int]): (C, H, W).

    Raises:
        ValueError: There is no ``VisionTransformer`` in it.
    """
    model = copy.deepcopy(model)
    found = [m for m in model.modules() if isinstance(m, VisionTransformer)]
    if not found:
        raise ValueError('expected a model with a `VisionTransformer`, whose position embedding '
                         f'can be baked, found `{type(model).__name__}`')
    for vit in found:
        with torch.no_grad():
            _, hw = vit.patch_embed(vit.pos_embed.new_zeros(1, *input_shape))
            baked = vit.resize_pos_embed(vit.pos_embed, vit.patch_resolution, hw,
                                         mode=vit.interpolate_mode,
                                         num_extra_tokens=vit.num_extra_tokens)
        vit.pos_embed = nn.Parameter(baked.clone(), vit.pos_embed.requires_grad)
        vit.patch_resolution = tuple(hw)
    return model
