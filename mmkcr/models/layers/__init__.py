"""Layers of supernets and subnets."""

from mmkcr.lazy import lazy_names

_HOMES = dict(
    DSConv='mbconv', LiteMLA='lite_mla', MBConv='mbconv', MaskedLayerNorm='norms',
    MixedAttention='operator_attention', OperatorAttention='operator_attention', Put='selection',
    SlicedLayerNorm='norms', Take='selection', TokenGrid='operator_attention')

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
