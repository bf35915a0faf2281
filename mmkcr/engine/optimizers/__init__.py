"""Building optimizers."""

from .layer_decay import LayerDecayOptimWrapperConstructor
from .layer_depth import layer_depth

__all__ = ['LayerDecayOptimWrapperConstructor', 'layer_depth']
