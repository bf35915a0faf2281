"""Channel selection on the bottleneck after every attention (KCR, section 3.1)."""

from typing import Dict

from torch import Tensor

from mmkcr.models.gates import BaseGate
from mmkcr.models.layers import GatedMBConv, SlicedMBConv
from mmkcr.registry import MODELS
from .efficientvit import EfficientViT, EfficientViTBlock
from .searchable import SearchableBackbone


class LocalChannelSites(SearchableBackbone):
    """Sites of EfficientViT: the bottleneck of a block with attention.

    Its units are the channels of the residual stream that the bottleneck reads and writes; the
    hidden channels stay.
    """

    method = 'kcr'

    def _find_sites(self) -> Dict[str, int]:
        return {f'{name}.local': block.attn.channels for name, block in self.named_modules()
                if isinstance(block, EfficientViTBlock)}

    def _gate_site(self, site: str, gate: BaseGate) -> None:
        block = self.get_submodule(site.rpartition('.')[0])
        block.local = GatedMBConv(block.local, gate)

    def _slice_site(self, site: str, kept: Tensor) -> None:
        block = self.get_submodule(site.rpartition('.')[0])
        block.local = SlicedMBConv(block.local, kept)


@MODELS.register_module()
class KCREfficientViT(LocalChannelSites, EfficientViT):
    """:class:`EfficientViT` with KCR-Transformer blocks.

    Args:
        *args: See :class:`EfficientViT`.
        gates (dict, optional): See :class:`SearchableBackbone`.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`EfficientViT`.
    """
