"""Everything that configs name in the registry of models: imported when the first is asked for."""

from mmkcr import registry  # noqa: F401  (before any host library)
from .backbones import *  # noqa: F401,F403
from .heads import *  # noqa: F401,F403
from .losses import *  # noqa: F401,F403
from .search_space import SearchSpace  # noqa: F401
from .searchable import Searchable, SearchableBackbone  # noqa: F401
