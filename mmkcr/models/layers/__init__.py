"""Layers of supernets and subnets."""

from .ffn import GatedFFN, SlicedFFN, SlicedLayerNorm
from .lite_mla import GatedLiteMLA, LiteMLA, SlicedLiteMLA
from .masked_attention import MaskedAttention
from .mbconv import DSConv, GatedMBConv, MBConv, SlicedMBConv
from .operator_attention import GatedAttention, OperatorAttention, TokenGrid

__all__ = [
    'DSConv', 'GatedAttention', 'GatedFFN', 'GatedLiteMLA', 'GatedMBConv', 'LiteMLA', 'MBConv',
    'MaskedAttention', 'OperatorAttention', 'SlicedFFN', 'SlicedLayerNorm', 'SlicedLiteMLA',
    'SlicedMBConv', 'TokenGrid'
]
