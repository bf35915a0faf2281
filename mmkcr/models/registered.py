"""Everything that configs name in the registry of models: imported when the first is asked for."""
# ruff: noqa: F401

from .backbones.efficientvit import EfficientViT, EfficientViTClsHead
from .backbones.register_vit import RegisterVisionTransformer
from .search_space import SearchSpace
from .searchable import Searchable, SearchableBackbone
