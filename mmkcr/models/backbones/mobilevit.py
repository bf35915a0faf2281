"""MobileViT with DCS-Transformer blocks."""

import math
from typing import Any, List, Sequence

from mmpretrain.models import MobileViT
from mmpretrain.models.utils import MultiheadAttention
from torch import nn

from mmkcr.core.sites import Count
from mmkcr.models.gates import BaseGate
from mmkcr.models.layers import GatedFFN, MaskedAttention
from mmkcr.registry import MODELS
from .dcs import DCSBackbone
from .ffn_channels import FFNChannelSites


class ConvGatedFFN(GatedFFN):
    """A gated MLP in front of a convolution, whose size the paper's cost counts too.

    Args:
        ffn (FFN): See :class:`~mmkcr.models.layers.GatedFFN`.
        gate (BaseGate): Likewise.
        filters (int): Filters C' of the convolution after the transformer blocks.
    """

    def __init__(self, ffn: nn.Module, gate: BaseGate, filters: int) -> None:
        super().__init__(ffn, gate)
        self.filters = filters

    def paper_cost(self, size: Count, input_shape: Sequence[int]) -> Count:
        """``2 (2 size^2 + size) + (1 + size) H W C'`` (DCS, section 3.4)."""
        positions = math.prod(input_shape[:-1])
        return super().paper_cost(size, input_shape) + (1 + size) * positions * self.filters


@MODELS.register_module()
class DCSMobileViT(DCSBackbone, FFNChannelSites, MobileViT):
    """mmpretrain's ``MobileViT`` with DCS-Transformer blocks.

    A site is the MLP of a transformer block; its units are the channels that it reads and writes
    (DCS, section 3.2). Every block attends with masked queries and keys.

    Args:
        *args: See :class:`mmpretrain.models.MobileViT`; ``arch`` is 'small', 'x_small',
            'xx_small' or a list.
        img_size (int): The most common image size. Any size can be run; the commands count MACs
            for this one. Defaults to 224.
        qk_mask (dict, optional): See :class:`DCSBackbone`.
        outputs (bool): As above.
        gates (dict, optional): See :class:`SearchableBackbone`.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`mmpretrain.models.MobileViT`.
    """

    method = 'dcs'
    arch_zoo = MobileViT.arch_settings

    def __init__(self, *args: Any, img_size: int = 224, **kwargs: Any) -> None:
        self.img_size = img_size
        super().__init__(*args, **kwargs)

    def _attentions(self) -> List[str]:
        return [name for name, module in self.named_modules()
                if isinstance(module, MultiheadAttention)]

    def _mask_attention(self, name: str) -> None:
        block = self.get_submodule(name.rpartition('.')[0])
        block.attn = MaskedAttention(block.attn, self._build_mask(block.attn.embed_dims,
                                                               block.attn.num_heads))

    def _find_sites(self) -> dict:
        return super()._find_sites() if self.outputs else {}

    def _gate_site(self, site: str, gate: BaseGate) -> None:
        block, _ = self._block(site)
        stage = self.get_submodule(site.partition('.global_rep.')[0])
        block.ffn = ConvGatedFFN(block.ffn, gate, stage.conv_proj.conv.out_channels)
