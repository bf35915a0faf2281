"""Kinds of searchable dimension, each written once on an adapter's view of a host network."""

from .base import KINDS, find_sites, why_not
from .channels import AttentionOutputs, Channels, Embedding
from .head_operator import HeadOperatorSite
from .heads import HeadChannels, Heads
from .mlps import MLPChannels, MLPHidden
from .qk_mask import QKMaskSite

KINDS.update({kind.kind: kind for kind in (
    AttentionOutputs, Channels, Embedding, HeadOperatorSite, Heads, HeadChannels, MLPChannels,
    MLPHidden, QKMaskSite)})

__all__ = ['KINDS', 'QKMaskSite', 'find_sites', 'why_not']
