"""Kinds of searchable dimension, each written once on an adapter's view of a host network."""

from .attention_outputs import AttentionOutputs
from .base import KINDS, find_sites, why_not
from .channels import Channels
from .embedding import Embedding
from .head_operator import HeadOperatorSite
from .heads import HeadChannels, Heads
from .mlp_channels import MLPChannels
from .mlp_hidden import MLPHidden
from .qk_mask import QKMaskSite

KINDS.update((kind.kind, kind) for kind in (
    AttentionOutputs, Channels, Embedding, HeadOperatorSite, Heads, HeadChannels, MLPChannels,
    MLPHidden, QKMaskSite))

__all__ = [
    'AttentionOutputs', 'Channels', 'Embedding', 'HeadChannels', 'HeadOperatorSite', 'Heads',
    'KINDS', 'MLPChannels', 'MLPHidden', 'QKMaskSite', 'find_sites', 'why_not'
]
