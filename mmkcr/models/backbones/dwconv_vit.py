"""Foundation ViTs with drop-in depthwise convolution."""

from typing import Dict, Sequence

from mmpretrain.models import VisionTransformer
from torch import Tensor

from mmkcr.models.gates import BaseGate
from mmkcr.registry import MODELS
from .attention_heads import AttentionHeadSites
from .ffn_channels import FFNChannelSites

_ZOO = VisionTransformer.arch_zoo


@MODELS.register_module()
class DWConvVisionTransformer(AttentionHeadSites, VisionTransformer):
    """mmpretrain's ``VisionTransformer`` with heads replaced by depthwise convolution.

    DINOv2 is ``arch='dinov2-base'`` or ``'dinov2-large'`` with ``patch_size=14`` and
    ``layer_scale_init_value=1e-5``; MAE and plain ViT ``'base'`` or ``'large'``; CLIP the same with
    ``pre_norm=True``; DeiT ``'deit-small'`` and the like.

    Args:
        *args: See :class:`mmpretrain.models.VisionTransformer`.
        operator (str): See :class:`~mmkcr.models.backbones.attention_heads.AttentionHeadSites`.
        num_registers (int): As above.
        with_cp (bool): As above.
        gates (dict, optional): See :class:`SearchableBackbone`.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`mmpretrain.models.VisionTransformer`.
    """

    optional_keys = r'ln[12]\.|mask_token$'
    arch_zoo = {
        **_ZOO,
        **dict.fromkeys(['dinov2-b', 'dinov2-base'], _ZOO['base']),
        **dict.fromkeys(['dinov2-l', 'dinov2-large'], _ZOO['large']),
    }


@MODELS.register_module()
class KCRDWConvVisionTransformer(FFNChannelSites, DWConvVisionTransformer):
    """Both at once: replaced heads, and KCR's channel selection at the MLPs.

    The sites are those of :class:`DWConvVisionTransformer` (``layers.0.attn``) and of
    :class:`KCRVisionTransformer` (``layers.0.ffn``), in one structure file. With
    ``structure`` of replaced heads and ``gates=dict(ffn=...)`` the channels are searched on the
    replaced network; with ``gates=dict(attn=..., ffn=...)`` both are searched together.

    Args:
        *args: See :class:`DWConvVisionTransformer`.
        **kwargs: As above.
    """

    method = 'kcr+dwconv'

    def _find_sites(self) -> Dict[str, int]:
        heads = AttentionHeadSites._find_sites(self)
        channels = FFNChannelSites._find_sites(self)
        order = {name: place for place, (name, _) in enumerate(self.named_modules())}
        return dict(sorted({**heads, **channels}.items(), key=lambda item: order[item[0]]))

    def _operators(self, site: str) -> Sequence[str]:
        return AttentionHeadSites._operators(self, site) if site in self.attentions() else ()

    def _gate_site(self, site: str, gate: BaseGate) -> None:
        kind = AttentionHeadSites if site in self.attentions() else FFNChannelSites
        kind._gate_site(self, site, gate)

    def _slice_site(self, site: str, kept: Tensor, *operator: str) -> None:
        kind = AttentionHeadSites if site in self.attentions() else FFNChannelSites
        kind._slice_site(self, site, kept, *operator)
