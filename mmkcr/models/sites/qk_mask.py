"""Input-dependent mask on queries and keys (DCS, section 3.1)."""

from typing import Any, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from mmkcr.core import Axis, MaskEntry, MaskPoint, Unsupported, slice_axes
from mmkcr.models.gates import QKMask
from mmkcr.models.layers.lite_mla import LiteMLA
from mmkcr.registry import MODELS
from .base import AttentionSite, register_kind


class MaskHook:
    """Multiplies queries and keys by a mask that is computed from their projection's input.

    Args:
        mask (QKMask): Mask of D channels. It belongs to the attention layer.
        parts (tuple[int | None, ...]): The parts of the projection's output, in order: 0 for
            queries, 1 for keys, None for values, which are not masked.
    """

    def __init__(self, mask: QKMask, parts: Tuple[Optional[int], ...]) -> None:
        self.mask, self.parts = mask, parts

    def __call__(self, _: nn.Module, args: Tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Forward hook of a projection to (..., N, parts * D), or fewer channels of q and k."""
        chosen = self.mask.binarize(self.mask(args[0]))  # (..., N, 1 or 2, D)
        masked = sum(part is not None for part in self.parts)
        rest = out.shape[-1] - masked * self.mask.channels  # channels of the values
        sizes = [rest if part is None else self.mask.channels for part in self.parts]
        # with one mask for both, part % 1 is 0
        pieces = [piece if part is None else piece * chosen[..., part % chosen.shape[-2], :]
                  for piece, part in zip(out.split(sizes, -1), self.parts)]
        return torch.cat(pieces, -1)


@register_kind
class QKMaskSite(AttentionSite):
    """Puts a :class:`~mmkcr.models.gates.QKMask` on an attention layer, under the key ``mask``.

    It has no gate, slices nothing, and stays in the subnet. Its options are those of the mask.
    """

    kind = 'qk_mask'
    gated = False
    options = ('type', 'separate', 'share_heads', 'rank', 'init', 'temperature')

    @classmethod
    def views(cls, host: nn.Module) -> List[Any]:
        """Views of attention layers, and the paths of EfficientViT's linear attention layers."""
        linear = [path for path, module in host.named_modules() if isinstance(module, LiteMLA)]
        return [*super().views(host), *linear]

    @classmethod
    def of(cls, host: nn.Module, view: Any, **options: Any) -> 'QKMaskSite':
        """The mask of an attention layer."""
        if isinstance(view, str):  # the path of a linear attention layer
            site = cls(host, view, view, host.get_submodule(view).channels)
        elif not view.called:
            raise Unsupported(f'{view.why_uncalled} at `{view.path}`')
        elif sum(view.fused) != 3:  # the values alone, of deformable attention
            raise Unsupported(f'its heads have no queries and keys at `{view.path}`')
        else:
            site = cls(host, view, view.path, view.heads * view.width)
        site.config = dict(dict(type='mmkcr.QKMask'), **options)
        return site

    def axes(self) -> List[Axis]:
        """None: the mask slices nothing."""
        return []

    def claims(self) -> List[Axis]:
        """Inputs and outputs of the projections, because the mask has their sizes."""
        return [Axis(projection, 'weight', dim) for projection in self._projections()
                for dim in (0, 1)]

    def _projections(self) -> List[nn.Module]:
        """The fused projection of queries, keys and values, or those of queries and of keys."""
        if isinstance(self.owner, LiteMLA):
            return [self.owner.qkv]
        return [self.module(path) for path in self.view.projections[:2]]

    def mask_points(self) -> List[MaskPoint]:
        """None: the mask is applied by a hook of its own, or by the layer."""
        return []

    def prepare(self) -> None:
        """Put the mask on the layer, in its precision."""
        owner, linear = self.owner, isinstance(self.owner, LiteMLA)
        projections = self._projections()
        weight = projections[0].weight
        heads = self.total // owner.head_dim if linear else self.view.heads
        owner.mask = MODELS.build(dict(self.config, channels=self.total, num_heads=heads,
                                       maps=linear, in_channels=weight.shape[1])).to(weight)
        if linear:  # the layer calls the mask itself
            # of all scales: keys times values and ones, and that times queries
            owner.mask.linear_products = 2 * (1 + len(owner.aggreg)) * (owner.head_dim + 1)
            return
        parts: Tuple[Optional[int], ...] = (0, 1, None)
        for projection, count in zip(projections, self.view.fused):
            projection.register_forward_hook(MaskHook(owner.mask, parts[:count]))
            parts = parts[count:]  # each projection takes its `count` parts

    # ---- folding --------------------------------------------------------------------------------

    @property
    def mask(self) -> Optional[QKMask]:
        """The mask, or None where nothing is left of a folded one."""
        return getattr(self.owner, 'mask', None)

    def fold(self, entry: MaskEntry) -> None:
        """Remove what is constant; the network computes the same wherever these rows are constant.

        A constant row leaves the mask's linear layer. A channel that is shut leaves the queries and
        the keys, where the layer takes narrower ones: an equal number of every head, so that of a
        head with more shut channels than another some stay, with weights of 0. Elsewhere the
        weights of shut channels become 0. A mask without rows is removed.

        Args:
            entry (MaskEntry): The constant rows of the whole mask.

        Raises:
            ValueError: The mask has another number of rows, or is folded already.
        """
        mask = self.mask
        if mask is None or mask.place is not None:
            raise ValueError(f'expected a whole mask at `{self.name}`, found one that is folded')
        if entry.total != len(mask.bias):
            raise ValueError(f'expected a fold of {len(mask.bias)} rows at `{self.name}`, found '
                             f'one of {entry.total}')
        device, open_, shut = mask.bias.device, 1, 0
        state = torch.full((entry.total, ), -1, device=device)
        state[entry.open], state[entry.shut] = open_, shut
        # rows of the linear layer to entries (R, D) of the mask: all heads may share rows
        parts = 2 if mask.separate else 1
        state, rows = (values.view(parts, -1).repeat(1, mask.repeats)
                       for values in (state, torch.arange(entry.total, device=device)))
        if isinstance(self.owner, LiteMLA) or self.view.narrow is not None:
            # neither part matters if one is 0: the scores are products of queries and keys
            state = state.masked_fill((state == shut).any(0), shut)
            kept = self._narrow(state[0] == shut)
            state, rows = state[:, kept], rows[:, kept]
        else:
            self._clear(state == shut)
        needed = rows[state < 0].unique()
        if not len(needed):
            self._remove(mask)
            return
        mask.fold(needed, torch.searchsorted(needed, rows).masked_fill(state >= 0, len(needed)))

    def _narrow(self, shut: Tensor) -> Tensor:
        """Take the channels (D, ) that are shut out of queries and keys; returns those left."""
        owner, linear = self.owner, isinstance(self.owner, LiteMLA)
        heads = shut.view(self.total // owner.head_dim if linear else self.view.heads, -1)
        width = max(1, int((~heads).sum(1).max()))  # products of no channel are refused somewhere
        # the open ones of every head first, then as many shut ones as it needs
        kept = heads.int().argsort(dim=1, stable=True)[:, :width].sort(1)[0]
        kept = kept + heads.shape[1] * torch.arange(len(heads), device=kept.device)[:, None]
        if linear:
            owner.narrow(kept, shut)
            return kept.flatten()
        self._clear(shut[None])
        if width < heads.shape[1]:
            parts = [0, 1, None]
            for projection, count in zip(self._projections(), self.view.fused):
                # rows of the kept channels of queries or keys, and all of the values
                every = torch.arange(self.total, device=kept.device)
                index = [place * self.total + (every if part is None else kept.flatten())
                         for place, part in enumerate(parts[:count])]
                slice_axes([Axis(projection, name) for name in ('weight', 'bias')],
                           torch.cat(index))
                parts = parts[count:]
            self.host.set_submodule(self.path, self.view.narrow(owner))
        return kept.flatten()

    def _clear(self, shut: Tensor) -> None:
        """Let channels of queries and of keys, (1 or 2, D), be 0 everywhere."""
        parts = [0, 1, None]
        for projection, count in zip(self._projections(), self.view.fused):
            for place, part in enumerate(parts[:count]):
                if part is not None:
                    cleared = place * self.total + shut[part % len(shut)].nonzero().flatten()
                    for value in (projection.weight, projection.bias):
                        if value is not None:
                            value.data[cleared] = 0
            parts = parts[count:]

    def _remove(self, mask: QKMask) -> None:
        """Leave the layer without its mask."""
        if isinstance(self.owner, LiteMLA):
            self.owner.mask = None
            return
        for projection in self._projections():
            for key, hook in list(projection._forward_hooks.items()):
                if isinstance(hook, MaskHook) and hook.mask is mask:
                    del projection._forward_hooks[key]
        del self.owner.mask

    @staticmethod
    def masks(host: nn.Module) -> Mapping[str, QKMask]:
        """The masks of a host by module path."""
        return {name: module for name, module in host.named_modules()
                if isinstance(module, QKMask)}
