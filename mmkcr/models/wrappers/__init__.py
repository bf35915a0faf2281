"""Wrappers that train any task model."""

from .feature_tap import FeatureTap
from .masked_search import MaskedSearchModel
from .regularized import RegularizedModel
from .search import SearchModel

__all__ = ['FeatureTap', 'MaskedSearchModel', 'RegularizedModel', 'SearchModel']
