"""Everything of the papers that configs name: imported when the first of it is asked for."""
# ruff: noqa: F401

from . import named
from .dcs import information_bottleneck, metric, qk_mask
from .dwconv import top_k
from .kcr import kernel_complexity
from .kcr import metric as kernel_metric
from .kcr.selfsup import moca, moca_heads
from .kcr.vqa import questions
from .ofb import adaptive_one_hot, masked_search, progressive_pruning
from .search import bilevel, gumbel, price, refresh, search_model, teachers
