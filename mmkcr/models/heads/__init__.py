"""Heads that the host libraries lack."""

from .efficientvit_head import EfficientViTClsHead
from .masked_image_head import MaskedImageHead

__all__ = ['EfficientViTClsHead', 'MaskedImageHead']
