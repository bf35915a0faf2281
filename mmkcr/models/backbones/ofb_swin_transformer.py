"""Swin with bi-masks on the width of every stage, heads and MLPs (OFB, section 3)."""

from typing import Any, Dict, Iterator, List, Tuple

from mmcv.cnn.bricks.transformer import FFN, PatchEmbed
from mmpretrain.models import SwinTransformer
from torch import Tensor, nn

from mmkcr.core import Member
from mmkcr.models.gates import BiMaskGate
from mmkcr.models.layers.bimask import (
    GatedHiddenFFN,
    GatedLinear,
    GatedPatchEmbed,
    GatedWindowMSA,
    MaskedDropout,
    MaskedLayerNorm,
    SizedWindowMSA,
    take_over,
)
from mmkcr.registry import MODELS
from .bimask_sites import BiMaskSite, BiMaskSites
from .swin_transformer import UpgradedSwinKeys

_MERGED = 4  # neighbours that patch merging puts side by side


@MODELS.register_module()
class OFBSwinTransformer(BiMaskSites, UpgradedSwinKeys, SwinTransformer):
    """mmpretrain's ``SwinTransformer`` with the search space of Once-for-Both.

    Sites: ``patch_embed`` and ``stages.<i>.downsample.reduction``, the width of
    the stage that follows; ``stages.<i>.blocks.<j>.attn.w_msa``, heads and
    their channels, with the heads' position biases; ``stages.<i>.blocks.<j>.ffn``.
    Feature maps keep the dense widths, with 0 at channels that were dropped.

    Args:
        *args: See :class:`mmpretrain.models.SwinTransformer`.
        gates (dict, optional): See :class:`OFBVisionTransformer`.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`mmpretrain.models.SwinTransformer`.

    Raises:
        ValueError: ``out_after_downsample=True``.
    """

    optional_keys = r'norm\d\.'

    def _prepare(self, searchable: bool) -> None:
        super()._prepare(searchable)
        if searchable and self.out_after_downsample:
            raise ValueError('expected `out_after_downsample=False` of a gated '
                             '`OFBSwinTransformer`, found True')

    # ---- sites ----------------------------------------------------------------------------------

    @staticmethod
    def _width_site(stage: int) -> str:
        return 'patch_embed' if stage == 0 else f'stages.{stage - 1}.downsample.reduction'

    def _describe_sites(self) -> Dict[str, BiMaskSite]:
        sites = {}
        for i, stage in enumerate(self.stages):
            sites[self._width_site(i)] = BiMaskSite(stage.embed_dims, 'width')
            for j, block in enumerate(stage.blocks):
                sites[f'stages.{i}.blocks.{j}.attn.w_msa'] = BiMaskSite(
                    stage.embed_dims, 'attn', block.attn.w_msa.num_heads)
                sites[f'stages.{i}.blocks.{j}.ffn'] = BiMaskSite(
                    block.ffn.feedforward_channels, 'ffn')
        return sites

    def _stage(self, site: str) -> int:
        """Stage that a site belongs to, a width that it is the width of."""
        if site == 'patch_embed':
            return 0
        return int(site.split('.')[1]) + site.endswith('reduction')

    def _norms(self, stage: int) -> Iterator[Tuple[nn.Module, str, int]]:
        """Norms over a stage's width: owner, name, entries a unit."""
        if stage == 0 and self.patch_embed.norm is not None:
            yield self.patch_embed, 'norm', 1
        for block in self.stages[stage].blocks:
            yield from ((block, 'norm1', 1), (block, 'norm2', 1))
        if hasattr(self, f'norm{stage}'):
            yield self, f'norm{stage}', 1
        if self.stages[stage].downsample is not None:
            yield self.stages[stage].downsample, 'norm', _MERGED

    # ---- gates ----------------------------------------------------------------------------------

    def _gate_site(self, site: str, gate: BiMaskGate) -> None:
        stage = self._stage(site)
        owner, name, layer = self._located(site)
        if site == 'patch_embed':
            self.drop_after_pos = take_over(MaskedDropout, self.drop_after_pos, shared=(gate, ))
            gated = take_over(GatedPatchEmbed, layer, gate=gate)
        elif name == 'reduction':
            gated = take_over(GatedLinear, layer, gate=gate, inner=_MERGED,
                              couplings=dict(width=self._width_site(stage - 1)))
        else:
            coupled = dict(gate=gate, couplings=dict(width=self._width_site(stage)))
            gated = take_over(GatedWindowMSA, layer, **coupled) if name == 'w_msa' else \
                GatedHiddenFFN.convert_from(layer, **coupled)
        setattr(owner, name, gated)
        if site == self._width_site(stage):
            for holder, norm, inner in self._norms(stage):
                if isinstance(getattr(holder, norm), nn.LayerNorm):
                    setattr(holder, norm, take_over(MaskedLayerNorm, getattr(holder, norm),
                                                    shared=(gate, ), inner=inner))

    def _ungate_site(self, site: str) -> None:
        stage = self._stage(site)
        owner, name, layer = self._located(site)
        cls = dict(patch_embed=PatchEmbed, reduction=nn.Linear, w_msa=SizedWindowMSA, ffn=FFN)[name]
        setattr(owner, name, take_over(cls, layer, ('gate', 'couplings', 'inner')))
        if site == 'patch_embed':
            self.drop_after_pos = take_over(nn.Dropout, self.drop_after_pos, ('shared', ))
        if site == self._width_site(stage):
            for holder, norm, _ in self._norms(stage):
                if isinstance(getattr(holder, norm), MaskedLayerNorm):
                    setattr(holder, norm, take_over(nn.LayerNorm, getattr(holder, norm),
                                                    ('shared', 'inner')))

    def _located(self, site: str) -> Tuple[nn.Module, str, nn.Module]:
        owner, _, name = site.rpartition('.')
        return self.get_submodule(owner), name, self.get_submodule(site)

    # ---- parameters -----------------------------------------------------------------------------

    def _members(self, site: str) -> List[Member]:
        _, name, layer = self._located(site)
        if site == self._width_site(self._stage(site)):
            return self._width_members(self._stage(site))
        if name == 'w_msa':
            channels = len(layer.qkv.weight) // 3 // layer.num_heads
            return [Member(layer.qkv, 'weight', 0, True, 3), Member(layer.qkv, 'bias', 0, True, 3),
                    Member(layer.proj, 'weight', 1),
                    Member(layer, 'relative_position_bias_table', 1, per=channels)]
        first, last = layer.layers[0][0], layer.layers[1]
        return [Member(first, 'weight', 0, True), Member(first, 'bias', 0, True),
                Member(last, 'weight', 1)]

    def _width_members(self, stage: int) -> List[Member]:
        embed = self.patch_embed
        if stage:
            reduction = self.stages[stage - 1].downsample.reduction
            members = [Member(reduction, 'weight', 0, True), Member(reduction, 'bias', 0, True)]
        else:
            members = [Member(embed.projection, name, 0, embed.norm is None)
                       for name in ('weight', 'bias')]
            members.append(Member(self, 'absolute_pos_embed', 2, True))
        for block in self.stages[stage].blocks:
            msa, ffn = block.attn.w_msa, block.ffn
            members += [Member(msa.qkv, 'weight', 1), Member(ffn.layers[0][0], 'weight', 1),
                        Member(ffn.gamma2, 'weight')]
            members += [Member(linear, name) for linear in (msa.proj, ffn.layers[1])
                        for name in ('weight', 'bias')]
        if self.stages[stage].downsample is not None:
            members.append(Member(self.stages[stage].downsample.reduction, 'weight', 1,
                                  inner=_MERGED))
        return members + [Member(getattr(owner, norm), name, 0, owner is embed, inner=inner)
                          for owner, norm, inner in self._norms(stage)
                          for name in ('weight', 'bias')]

    def _resize(self, site: str, groups: int, units: int) -> None:
        _, name, layer = self._located(site)
        stage = self._stage(site)
        if name == 'w_msa':
            layer.num_heads = groups
        elif name == 'ffn':
            layer.feedforward_channels = units
        else:
            self.num_features[stage] = self.stages[stage].embed_dims = units
            for block in self.stages[stage].blocks:
                block.attn.w_msa.embed_dims = block.ffn.embed_dims = units
            if self.stages[stage].downsample is not None:
                self.stages[stage].downsample.in_channels = units
            if stage:
                self.stages[stage - 1].downsample.out_channels = units

    def _slice_site(self, site: str, kept: Tensor) -> None:
        if site.endswith('w_msa') and site not in self.gates():
            owner, name, layer = self._located(site)
            setattr(owner, name, take_over(SizedWindowMSA, layer))
        super()._slice_site(site, kept)

    # ---- output ---------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        """Feature maps of the dense widths."""
        outs = super().forward(x)
        return tuple(self.widen(out, self._width_site(stage), 1)
                     for stage, out in zip(self.out_indices, outs))

    @property
    def last_norm(self) -> nn.Module:
        """The norm that gives the normalised tokens."""
        return getattr(self, f'norm{self.num_layers - 1}')

    def token_map(self, tokens: Tensor, hw: Tuple[int, int]) -> Tensor:
        """Normalised tokens (B, N, present) as a map (B, dense width, h, w)."""
        wide: Any = self.widen(tokens, self._width_site(self.num_layers - 1))
        return wide.transpose(1, 2).unflatten(2, tuple(hw))
