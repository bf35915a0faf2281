"""Heads that the host libraries lack."""

from mmkcr import registry  # noqa: F401  (before any host library)
from .efficientvit_head import EfficientViTClsHead

__all__ = ['EfficientViTClsHead']
