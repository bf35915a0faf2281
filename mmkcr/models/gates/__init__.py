"""Relaxations of discrete choices."""

from .base import BaseGate
from .bimask import BiMaskGate
from .gumbel import GumbelChannelGate
from .noise import NoisyGate
from .qk_mask import QKMask
from .top_k import RelaxedTopKGate

__all__ = ['BaseGate', 'BiMaskGate', 'GumbelChannelGate', 'NoisyGate', 'QKMask', 'RelaxedTopKGate']
