"""ViT and DeiT with bi-masks on width, heads and MLPs (OFB, section 3)."""

from typing import Any, Dict, List

from mmcv.cnn.bricks.transformer import FFN, PatchEmbed
from mmpretrain.models import VisionTransformer
from mmpretrain.models.utils import MultiheadAttention
from torch import Tensor, nn

from mmkcr.core import Member
from mmkcr.models.gates import BiMaskGate
from mmkcr.models.layers.bimask import (
    GatedAttention,
    GatedHiddenFFN,
    GatedPatchEmbed,
    MaskedDropout,
    MaskedLayerNorm,
    size_attention,
    take_over,
)
from mmkcr.registry import MODELS
from .bimask_sites import BiMaskSite, BiMaskSites

_WIDTH = 'patch_embed'
_COUPLED = dict(width=_WIDTH)


@MODELS.register_module()
class OFBVisionTransformer(BiMaskSites, VisionTransformer):
    """mmpretrain's ``VisionTransformer`` with the search space of Once-for-Both.

    Sites: ``patch_embed``, the width of the residual stream and of everything
    that reads or writes it; ``layers.<i>.attn``, heads and their channels;
    ``layers.<i>.ffn``, the hidden layer. Outputs keep the dense width, with 0
    at channels that were dropped. DeiT-S is ``arch='deit-small'``, DeiT-B
    ``'deit-base'``.

    Args:
        *args: See :class:`mmpretrain.models.VisionTransformer`.
        gates (dict, optional): See :class:`SearchableBackbone`; besides the
            gate's arguments, ``width``, ``attn`` and ``ffn`` overwrite those
            of one kind of site, such as ``attn=dict(start=0.5)``.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`mmpretrain.models.VisionTransformer`.
    """

    optional_keys = r'ln[12]\.'

    def _describe_sites(self) -> Dict[str, BiMaskSite]:
        sites = {_WIDTH: BiMaskSite(self.patch_embed.projection.out_channels, 'width')}
        for index, layer in enumerate(self.layers):
            sites[f'layers.{index}.attn'] = BiMaskSite(layer.attn.embed_dims, 'attn',
                                                       layer.attn.num_heads)
            sites[f'layers.{index}.ffn'] = BiMaskSite(
                getattr(layer.ffn, 'feedforward_channels', 0), 'ffn')
        return sites

    # ---- gates ----------------------------------------------------------------------------------

    def _gate_site(self, site: str, gate: BiMaskGate) -> None:
        if site == _WIDTH:
            self.patch_embed = take_over(GatedPatchEmbed, self.patch_embed, gate=gate)
            self.drop_after_pos = take_over(MaskedDropout, self.drop_after_pos, shared=(gate, ))
            self._exchange_norms(nn.LayerNorm, MaskedLayerNorm, shared=(gate, ))
            return
        layer, name = self._layer(site)
        cls = GatedAttention if name == 'attn' else GatedHiddenFFN
        setattr(layer, name, cls.convert_from(getattr(layer, name), gate=gate, couplings=_COUPLED))

    def _ungate_site(self, site: str) -> None:
        if site == _WIDTH:
            self.patch_embed = take_over(PatchEmbed, self.patch_embed, ('gate', ))
            self.drop_after_pos = take_over(nn.Dropout, self.drop_after_pos, ('shared', ))
            self._exchange_norms(MaskedLayerNorm, nn.LayerNorm, ('shared', ))
            return
        layer, name = self._layer(site)
        cls = MultiheadAttention if name == 'attn' else FFN
        plain = take_over(cls, getattr(layer, name), ('gate', 'couplings', 'scale'))
        setattr(layer, name, plain)

    def _exchange_norms(self, old: type, new: type, without: tuple = (), **attributes: Any) -> None:
        for owner in list(self.modules()):
            for name, norm in list(owner.named_children()):
                if type(norm) is old:
                    setattr(owner, name, take_over(new, norm, without, **attributes))

    def _layer(self, site: str) -> tuple:
        _, index, name = site.split('.')
        return self.layers[int(index)], name

    # ---- parameters -----------------------------------------------------------------------------

    def _members(self, site: str) -> List[Member]:
        if site == _WIDTH:
            return self._width_members()
        layer, name = self._layer(site)
        if name == 'attn':
            qkv, proj = layer.attn.qkv, layer.attn.proj
            return [Member(qkv, 'weight', 0, True, 3), Member(qkv, 'bias', 0, True, 3),
                    Member(proj, 'weight', 1)]
        first, last = layer.ffn.layers[0][0], layer.ffn.layers[1]
        return [Member(first, 'weight', 0, True), Member(first, 'bias', 0, True),
                Member(last, 'weight', 1)]

    def _width_members(self) -> List[Member]:
        embed = self.patch_embed
        scaled = embed.norm is None
        members = [Member(embed.projection, 'weight', 0, scaled),
                   Member(embed.projection, 'bias', 0, scaled),
                   Member(self, 'pos_embed', 2, True), Member(self, 'cls_token', 2, True)]
        norms = [] if scaled else [embed.norm]
        members += [Member(norm, name, 0, True) for norm in norms for name in ('weight', 'bias')]
        norms = [getattr(self, name, None) for name in ('pre_norm', 'ln1', 'ln2')]
        for layer in self.layers:
            norms += [layer.ln1, layer.ln2]
            for proj, scale in ((layer.attn.proj, layer.attn.gamma1),
                                (layer.ffn.layers[1], layer.ffn.gamma2)):
                members += [Member(proj, 'weight', 0), Member(proj, 'bias', 0),
                            Member(scale, 'weight', 0)]
            members += [Member(layer.attn.qkv, 'weight', 1),
                        Member(layer.ffn.layers[0][0], 'weight', 1)]
        return members + [Member(norm, name) for norm in norms if isinstance(norm, nn.LayerNorm)
                          for name in ('weight', 'bias')]

    def _resize(self, site: str, groups: int, units: int) -> None:
        if site == _WIDTH:
            self.patch_embed.embed_dims = units
            for layer in self.layers:
                layer.attn.input_dims = layer.ffn.embed_dims = units
            return
        layer, name = self._layer(site)
        if name == 'ffn':
            layer.ffn.feedforward_channels = units
            return
        description = self.site_descriptions()[site]
        scale = (description.total // description.groups)**-0.5
        size_attention(layer.attn, groups, units // groups, scale)

    # ---- output ---------------------------------------------------------------------------------

    def _format_output(self, x: Tensor, hw: tuple) -> Tensor:
        out = super()._format_output(x, hw)
        return self.widen(out, _WIDTH, 1 if self.out_type == 'featmap' else -1)

    # ---- masked image modelling -----------------------------------------------------------------

    @property
    def last_norm(self) -> nn.Module:
        """The norm that gives the normalised tokens."""
        return self.ln1

    def token_map(self, tokens: Tensor, hw: tuple) -> Tensor:
        """Normalised tokens (B, N, present) as a map (B, dense width, h, w)."""
        patches = self.widen(tokens[:, self.num_extra_tokens:], _WIDTH)
        return patches.transpose(1, 2).unflatten(2, tuple(hw))
