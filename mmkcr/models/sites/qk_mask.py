"""Input-dependent mask on queries and keys (DCS, section 3.1)."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core import Axis, Unsupported
from mmkcr.lazy import is_of
from mmkcr.models.adapters import attention_views
from .base import AttentionSite, linear_paths


def _masked(mask: nn.Module, parts: Sequence[int], _: nn.Module, args: tuple[Tensor, ...],
            out: Tensor) -> Tensor:
    """Multiply queries and keys by a mask of the input, as a forward hook of their projection.

    ``parts`` are what the projection's output begins with, D channels each: 0 for queries, 1 for
    keys. Values, which may follow, are not masked.
    """
    chosen = mask.binarize(mask(args[0]))  # (..., N, 1 or 2, D)
    # with one mask for both, part % 1 is 0
    pieces = [out.narrow(-1, place * mask.channels, mask.channels)
              * chosen[..., part % chosen.shape[-2], :] for place, part in enumerate(parts)]
    values = out[..., len(parts) * mask.channels:]
    return torch.cat([*pieces, values] if values.shape[-1] else pieces, -1)


class QKMaskSite(AttentionSite):
    """Puts a mask, by default ``mmkcr.QKMask``, on an attention layer, under the key ``mask``.

    It has no gate, slices nothing, and stays in the subnet. Its options are the options of the
    mask.
    """

    kind = 'qk_mask'
    gated = False
    options = ('type', 'separate', 'init', 'temperature')

    @staticmethod
    def views(host: nn.Module) -> list[Any]:
        """Views of attention layers, and the paths of EfficientViT's linear attention layers."""
        return [*attention_views(host), *linear_paths(host)]

    @classmethod
    def of(cls, host: nn.Module, view: Any, **options: Any) -> 'QKMaskSite':
        """The mask of an attention layer."""
        if isinstance(view, str):  # the path of a linear attention layer
            site = cls(host, view, view, host.get_submodule(view).channels)
        elif view.why_uncalled:
            raise Unsupported(f'{view.why_uncalled} at `{view.path}`')
        elif sum(view.fused) != 3:  # the values alone, of deformable attention
            raise Unsupported(f'its heads have no queries and keys at `{view.path}`')
        else:
            site = cls(host, view, view.path, view.heads * view.width)
        site.config = dict(dict(type='mmkcr.QKMask'), **options)
        return site

    def claims(self) -> list[Axis]:
        """Inputs and outputs of the projections, because the mask has their sizes."""
        return [Axis(projection, 'weight', dim) for projection in self.projections()
                for dim in (0, 1)]

    def projections(self) -> list[nn.Module]:
        """The fused projection of queries, keys and values, or the projections of queries and of
        keys.
        """
        if isinstance(self.view, str):
            return [self.owner.qkv]
        return [self.module(path) for path in self.view.projections[:2]]

    def prepare(self) -> None:
        """Put the mask on the layer, in its precision."""
        owner, linear = self.owner, isinstance(self.view, str)
        from mmkcr.registry import MODELS  # masks are of searches alone
        projections = self.projections()
        weight = projections[0].weight
        owner.mask = MODELS.build(dict(self.config, channels=self.total, maps=linear,
                                       in_channels=weight.shape[1])).to(weight)
        if linear:  # the layer calls the mask itself
            return
        # the first projection holds the queries alone, or with keys, or with keys and values
        parts = [(0, ), (1, )] if self.view.fused[0] == 1 else [(0, 1)]
        for projection, masked in zip(projections, parts):
            projection.register_forward_hook(partial(_masked, owner.mask, masked))

    @staticmethod
    def masks(host: nn.Module) -> Mapping[str, nn.Module]:
        """The masks of a host by module path."""
        return {name: module for name, module in host.named_modules()
                if is_of(module, 'mmkcr.methods.dcs.qk_mask.QKMask')}
