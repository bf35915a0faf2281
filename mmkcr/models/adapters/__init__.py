"""Adapters: they locate MLPs, attention, channels and residual streams in the host libraries."""

from . import attentions, channels, mlps, streams  # noqa: F401  (they register themselves)
from .attentions import simple_attention
from .mlps import simple_mlp
from .views import (
    attention_adapter,
    attention_views,
    channel_adapter,
    channel_views,
    mlp_adapter,
    mlp_views,
    stream_adapter,
    stream_views,
)

__all__ = [
    'attention_adapter', 'attention_views', 'channel_adapter', 'channel_views', 'mlp_adapter',
    'mlp_views', 'simple_attention', 'simple_mlp', 'stream_adapter', 'stream_views'
]
