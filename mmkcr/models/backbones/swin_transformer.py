"""Swin Transformer with KCR channel selection."""

from typing import Any, Dict

from mmpretrain.models import SwinTransformer
from torch import Tensor

from mmkcr.models.layers.window_attention import fuse_window_attention
from mmkcr.registry import MODELS
from .ffn_channels import FFNChannelSites


class UpgradedSwinKeys:
    """Mixin before a subclass of ``SwinTransformer``: loads old checkpoints."""

    def _load_from_state_dict(self, state_dict: Dict[str, Tensor], prefix: str,
                              local_metadata: Dict[str, Any], *args: Any) -> None:
        """Upgrade keys of old checkpoints, which the host does for itself only."""
        if (local_metadata.get('version') or 1) < 3:
            for key in [k for k in state_dict if k.startswith(prefix)]:
                name = key[len(prefix):]
                if name.startswith('norm.'):
                    state_dict[f'{prefix}norm{self.num_layers - 1}.{name[5:]}'] = \
                        state_dict.pop(key)
                elif 'attn_mask' in name:
                    del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


@MODELS.register_module()
class KCRSwinTransformer(FFNChannelSites, UpgradedSwinKeys, SwinTransformer):
    """mmpretrain's ``SwinTransformer`` with KCR-Transformer blocks.

    With ``pad_small_map=True`` and ``out_indices=(0, 1, 2, 3)`` it is a
    backbone for mmdet and mmseg: every feature level keeps its dense width.

    Args:
        *args: See :class:`mmpretrain.models.SwinTransformer`.
        gates (dict, optional): See :class:`SearchableBackbone`.
        structure (str | dict | Structure, optional): As above.
        fused_attention (bool): Attend by ``scaled_dot_product_attention`` and gather the windows
            once, in every state. Equal to the host's up to rounding; keys and an export to ONNX
            stay. Defaults to False: bit for bit the host.
        **kwargs: See :class:`mmpretrain.models.SwinTransformer`.
    """

    optional_keys = r'norm\d\.'

    def __init__(self, *args: Any, fused_attention: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if fused_attention:
            fuse_window_attention(self)
