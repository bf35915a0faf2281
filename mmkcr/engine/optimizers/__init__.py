"""Building optimizers."""

from .joint_constructor import JointOptimWrapperConstructor
from .layer_decay import LayerDecayOptimWrapperConstructor
from .layer_depth import layer_depth
from .search_constructor import SearchOptimWrapperConstructor, check_optimizers, gate_parameters
from .task_constructor import TaskOptimWrapperConstructor

__all__ = ['JointOptimWrapperConstructor', 'LayerDecayOptimWrapperConstructor',
           'SearchOptimWrapperConstructor', 'TaskOptimWrapperConstructor', 'check_optimizers',
           'gate_parameters', 'layer_depth']
