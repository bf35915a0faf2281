"""Backbones of this package, and the names of the methods' backbones."""

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
