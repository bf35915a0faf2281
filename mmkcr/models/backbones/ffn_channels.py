"""Channel selection on the input and output of every MLP (KCR, section 3.1)."""

from typing import Dict, Iterator, Tuple

from torch import Tensor, nn

from mmkcr.models.gates import BaseGate
from mmkcr.models.layers import GatedFFN, SlicedFFN, SlicedLayerNorm
from .searchable import SearchableBackbone

_NORM_NAMES = ('ln2', 'norm2')


class FFNChannelSites(SearchableBackbone):
    """Sites of transformers whose blocks end in ``ffn(norm(x), identity=x)``.

    A site is the FFN of a block; its units are the channels of the residual
    stream that the FFN reads and writes. The blocks of mmpretrain's ViT and
    Swin have this form, and mmcv's ``FFN`` serves both.
    """

    method = 'kcr'

    def _blocks(self) -> Iterator[Tuple[str, nn.Module, str]]:
        """Site, block and the name of the norm before its FFN."""
        for name, module in self.named_modules():
            norm = next((n for n in _NORM_NAMES if n in module._modules), None)
            if norm is not None and 'ffn' in module._modules:
                yield f'{name}.ffn', module, norm

    def _block(self, site: str) -> Tuple[nn.Module, str]:
        return next((block, norm) for name, block, norm in self._blocks() if name == site)

    def _find_sites(self) -> Dict[str, int]:
        return {
            site: self._full_width(getattr(block, norm))
            for site, block, norm in self._blocks()
        }

    @staticmethod
    def _full_width(norm: nn.Module) -> int:
        return norm.total if isinstance(norm, SlicedLayerNorm) else norm.normalized_shape[0]

    def _gate_site(self, site: str, gate: BaseGate) -> None:
        block, _ = self._block(site)
        block.ffn = GatedFFN(block.ffn, gate)

    def _slice_site(self, site: str, kept: Tensor) -> None:
        block, norm = self._block(site)
        setattr(block, norm, SlicedLayerNorm(getattr(block, norm), kept))
        block.ffn = SlicedFFN(block.ffn, kept)
