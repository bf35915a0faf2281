"""ViT and DeiT with KCR channel selection."""

from mmpretrain.models import VisionTransformer

from mmkcr.registry import MODELS
from .ffn_channels import FFNChannelSites


@MODELS.register_module()
class KCRVisionTransformer(FFNChannelSites, VisionTransformer):
    """mmpretrain's ``VisionTransformer`` with KCR-Transformer blocks.

    ViT-S/16 is ``arch='deit-small'`` (mmpretrain's ``'small'`` is another
    model), ViT-B/16 is ``arch='base'``.

    Args:
        *args: See :class:`mmpretrain.models.VisionTransformer`.
        gates (dict, optional): See :class:`SearchableBackbone`.
        structure (str | dict | Structure, optional): As above.
        **kwargs: See :class:`mmpretrain.models.VisionTransformer`.
    """

    optional_keys = r'ln[12]\.'
