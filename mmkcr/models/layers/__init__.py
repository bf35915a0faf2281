"""Layers of supernets and subnets."""

from .lite_mla import LiteMLA
from .mbconv import DSConv, MBConv
from .norms import MaskedLayerNorm, SlicedLayerNorm
from .operator_attention import MixedAttention, OperatorAttention, TokenGrid
from .selection import Put, Take

__all__ = [
    'DSConv', 'LiteMLA', 'MBConv', 'MaskedLayerNorm', 'MixedAttention', 'OperatorAttention', 'Put',
    'SlicedLayerNorm', 'Take', 'TokenGrid'
]
