"""What the backbones of DCS-Transformer have in common (DCS, section 3)."""

import copy
from typing import Any, Dict, List, Mapping, Optional

from torch import nn

from mmkcr.models.gates import QKMask
from mmkcr.registry import MODELS
from .searchable import SearchableBackbone


class DCSBackbone(SearchableBackbone):
    """Mixin: a mask on queries and keys of every attention, and selected attention outputs.

    The mask is there in the supernet and in the subnet. The paper's ablations:

    - ``DCS-Arch1`` (mask only): ``outputs=False``. There is nothing to search: the network
      with masks is trained as it is, without ``gates`` or ``structure``.
    - ``DCS-Arch2`` (selected outputs only): ``qk_mask=None``.
    - ``DCS-QK-Mask`` (two masks): ``qk_mask=dict(type='mmkcr.QKMask', separate=True)``.

    Cheaper masks of ours are ``share_heads=True`` and ``rank=8`` of :class:`QKMask`.

    A subclass puts a mask on its attention (:meth:`_attentions`, :meth:`_mask_attention`).

    Args:
        *args: The host backbone's arguments.
        qk_mask (dict, optional): Config of the mask without its channels. Defaults to
            ``dict(type='mmkcr.QKMask')``.
        outputs (bool): Select attention outputs. Defaults to True.
        **kwargs: See :class:`SearchableBackbone`, and the host backbone's arguments.
    """

    method = 'dcs'

    def __init__(self,
                 *args: Any,
                 qk_mask: Optional[Mapping[str, Any]] = dict(type='mmkcr.QKMask'),
                 outputs: bool = True,
                 **kwargs: Any) -> None:
        self.qk_mask, self.outputs = qk_mask, outputs
        super().__init__(*args, **kwargs)

    def _method_args(self) -> Dict[str, Any]:
        """The method's own arguments where they are not the default."""
        given = {} if self.outputs else dict(outputs=False)
        if self.qk_mask is None or dict(self.qk_mask) != dict(type='mmkcr.QKMask'):
            given['qk_mask'] = None if self.qk_mask is None else dict(self.qk_mask)
        return given

    def _non_default_args(self, args: tuple, kwargs: Dict[str, Any]) -> Dict[str, Any]:
        return {**super()._non_default_args(args, kwargs), **copy.deepcopy(self._method_args())}

    def _prepare(self, searchable: bool) -> None:
        if self.qk_mask is None or not (searchable or not self.outputs):
            return
        for attention in self._attentions():
            self._mask_attention(attention)

    def _build_mask(self, channels: int, num_heads: int, **kwargs: Any) -> QKMask:
        return MODELS.build(dict(self.qk_mask, in_channels=channels, channels=channels,
                                 num_heads=num_heads, **kwargs))

    def _attentions(self) -> List[str]:
        """Module paths of the attention layers."""
        raise NotImplementedError

    def _mask_attention(self, name: str) -> None:
        """Put a mask on one attention layer of the dense backbone."""
        raise NotImplementedError

    def masks(self) -> Dict[str, QKMask]:
        """The masks by module path; empty in the dense state and in ``DCS-Arch2``."""
        return {name: module for name, module in nn.Module.named_modules(self)
                if isinstance(module, QKMask)}
