"""Relaxations of discrete choices."""

from mmkcr.core.gate import BaseGate, NoisyGate
from .bimask import BiMaskGate
from .gumbel import GumbelChannelGate
from .qk_mask import QKMask
from .top_k import RelaxedTopKGate

__all__ = ['BaseGate', 'BiMaskGate', 'GumbelChannelGate', 'NoisyGate', 'QKMask', 'RelaxedTopKGate']
