"""Adapters: where the MLPs, the attention and the residual streams of host networks are."""

from . import attentions, mlps, streams  # noqa: F401  (they register themselves)
from .views import (
    AttentionView,
    MLPView,
    StreamView,
    attention_adapter,
    attention_views,
    mlp_adapter,
    mlp_views,
    simple_mlp,
    stream_adapter,
    stream_views,
)

__all__ = [
    'AttentionView', 'MLPView', 'StreamView', 'attention_adapter', 'attention_views',
    'mlp_adapter', 'mlp_views', 'simple_mlp', 'stream_adapter', 'stream_views'
]
