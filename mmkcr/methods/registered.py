"""Everything of the papers that configs name: imported when the first of it is asked for."""
# ruff: noqa: F401

from mmkcr import registry  # before any host library
from .dcs import bottleneck, information_bottleneck, metric, qk_mask
from .dwconv import top_k
from .kcr import kernel_complexity, nystrom_refresh
from .kcr import metric as kernel_metric
from .kcr.selfsup import codebook, moca, moca_heads
from .kcr.vqa import flava, questions
from .ofb import (
    adaptive_one_hot,
    bimask,
    masked_image_head,
    masked_search,
    progressive_pruning,
)
from .search import (
    bilevel,
    constructors,
    feature_tap_hook,
    gumbel,
    price,
    regularized,
    schedules,
    search_model,
)
