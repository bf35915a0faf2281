"""Building optimizers."""

from .joint_constructor import JointOptimWrapperConstructor
from .layer_decay import LayerDecayOptimWrapperConstructor
from .layer_depth import layer_depth
from .search_constructor import SearchOptimWrapperConstructor, check_optimizers, gate_parameters

__all__ = ['JointOptimWrapperConstructor', 'LayerDecayOptimWrapperConstructor',
           'SearchOptimWrapperConstructor', 'check_optimizers', 'gate_parameters', 'layer_depth']
