"""Backbones with searchable dimensions."""

from .dcs_efficientvit import DCSEfficientViT
from .dwconv_vit import DWConvVisionTransformer, KCRDWConvVisionTransformer
from .efficientvit import EfficientViT
from .local_channels import KCREfficientViT
from .mobilevit import DCSMobileViT
from .ofb_resnet import OFBResNet
from .ofb_swin_transformer import OFBSwinTransformer
from .ofb_vision_transformer import OFBVisionTransformer
from .searchable import SearchableBackbone
from .swin_transformer import KCRSwinTransformer
from .vision_transformer import KCRVisionTransformer

__all__ = [
    'DCSEfficientViT', 'DCSMobileViT', 'DWConvVisionTransformer', 'EfficientViT',
    'KCRDWConvVisionTransformer', 'KCREfficientViT', 'KCRSwinTransformer',
    'KCRVisionTransformer', 'OFBResNet', 'OFBSwinTransformer', 'OFBVisionTransformer',
    'SearchableBackbone'
]
