"""Wrappers that train any task model."""

from mmkcr.lazy import lazy_names

_HOMES = dict(FeatureTap='feature_tap', MaskedSearchModel='masked_search',
              RegularizedModel='regularized', SearchModel='search')

__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
