"""Backbones of this package, and the methods' backbones by name."""

from mmkcr import registry  # noqa: F401  (before any host library)
from .efficientvit import EfficientViT
from .named import (
    DCSEfficientViT,
    DCSMobileViT,
    DWConvVisionTransformer,
    KCRDWConvVisionTransformer,
    KCREfficientViT,
    KCRSwinTransformer,
    KCRVisionTransformer,
    OFBResNet,
    OFBSwinTransformer,
    OFBVisionTransformer,
)
from .register_vit import RegisterVisionTransformer

__all__ = [
    'DCSEfficientViT', 'DCSMobileViT', 'DWConvVisionTransformer', 'EfficientViT',
    'KCRDWConvVisionTransformer', 'KCREfficientViT', 'KCRSwinTransformer',
    'KCRVisionTransformer', 'OFBResNet', 'OFBSwinTransformer', 'OFBVisionTransformer',
    'RegisterVisionTransformer'
]
