"""EfficientViT with DCS-Transformer blocks."""

from typing import Any, Dict, List

from torch import Tensor

from mmkcr.models.gates import BaseGate
from mmkcr.models.layers import GatedLiteMLA, LiteMLA, SlicedLiteMLA
from mmkcr.registry import MODELS
from .dcs import DCSBackbone
from .efficientvit import EfficientViT
from .local_channels import LocalChannelSites


@MODELS.register_module()
class DCSEfficientViT(DCSBackbone, LocalChannelSites, EfficientViT):
    """:class:`EfficientViT` with DCS-Transformer blocks (DCS, appendix A).

    A site is an attention layer; its units are the channels of the concatenated scales that the
    projection reads. Queries and keys of every scale are masked, by one mask of C channels: the
    paper's ``M`` of N x D.

    Args:
        *args: See :class:`EfficientViT`.
        local (bool): Also select the channels of the bottleneck after every attention, which is
            the MLP of this network. The projections alone are a twelfth of B1's MACs, less than
            the paper's subnet saves. Defaults to False.
        qk_mask (dict, optional): See :class:`DCSBackbone`.
        outputs (bool): As above.
        gates (dict, optional): See :class:`SearchableBackbone`.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`EfficientViT`.
    """

    method = 'dcs'

    def __init__(self, *args: Any, local: bool = False, **kwargs: Any) -> None:
        self.select_local = local
        super().__init__(*args, **kwargs)

    def _method_args(self) -> Dict[str, Any]:
        return {**super()._method_args(), **(dict(local=True) if self.select_local else {})}

    def _attentions(self) -> List[str]:
        return [name for name, module in self.named_modules() if isinstance(module, LiteMLA)]

    def _mask_attention(self, name: str) -> None:
        attention = self.get_submodule(name)
        attention.add_mask(self._build_mask(
            attention.channels, attention.channels // attention.head_dim, maps=True))

    def _find_sites(self) -> Dict[str, int]:
        sites = {name: self.get_submodule(name).features for name in self._attentions()}
        if self.select_local:
            sites.update(super()._find_sites())
        return sites if self.outputs else {}

    def _gate_site(self, site: str, gate: BaseGate) -> None:
        block, _, part = site.rpartition('.')
        if part == 'local':
            super()._gate_site(site, gate)
        else:
            setattr(self.get_submodule(block), part, GatedLiteMLA(self.get_submodule(site), gate))

    def _slice_site(self, site: str, kept: Tensor) -> None:
        block, _, part = site.rpartition('.')
        if part == 'local':
            super()._slice_site(site, kept)
        else:
            setattr(self.get_submodule(block), part, SlicedLiteMLA(self.get_submodule(site), kept))
