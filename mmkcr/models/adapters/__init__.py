"""Adapters: they locate MLPs, attention, channels and residual streams in the host libraries."""

from . import attentions, channels, mlps, streams  # noqa: F401  (they register themselves)
from .views import (
    AttentionView,
    ChannelView,
    MLPView,
    StreamView,
    attention_adapter,
    attention_views,
    channel_adapter,
    channel_views,
    mlp_adapter,
    mlp_views,
    simple_mlp,
    stream_adapter,
    stream_views,
)

__all__ = [
    'AttentionView', 'ChannelView', 'MLPView', 'StreamView', 'attention_adapter',
    'attention_views', 'channel_adapter', 'channel_views', 'mlp_adapter', 'mlp_views',
    'simple_mlp', 'stream_adapter', 'stream_views'
]
