"""Everything of the papers that configs name: imported when the first of it is asked for."""

from mmkcr import registry  # noqa: F401  (before any host library)
from .dcs.bottleneck_refresh import InformationBottleneckHook
from .dcs.gate_noise import GateNoiseHook
from .dcs.information_bottleneck import InformationBottleneckLoss
from .dcs.metric import InformationBottleneckMetric
from .dcs.qk_mask import QKMask
from .dwconv.top_k import RelaxedTopKGate
from .kcr.kernel_complexity import KernelComplexityLoss
from .kcr.metric import KernelComplexityMetric
from .kcr.nystrom_refresh import NystromRefreshHook
from .kcr.selfsup.codebook import OnlineCodebook
from .kcr.selfsup.moca import MOCA
from .kcr.selfsup.moca_heads import MOCADecoder, MOCAHead
from .kcr.vqa.flava import FlavaImageEncoder, FlavaVQA
from .kcr.vqa.questions import SNLIVE, LabelAnswer, TokenizeQuestion
from .ofb.adaptive_one_hot import AdaptiveOneHotLoss
from .ofb.bimask import BiMaskGate
from .ofb.masked_image_head import MaskedImageHead
from .ofb.masked_search import MaskedSearchModel
from .ofb.progressive_pruning import ProgressivePruningHook
from .search.bilevel import BilevelTrainLoop, IterBilevelTrainLoop
from .search.feature_tap_hook import FeatureTapHook
from .search.gumbel import GumbelChannelGate
from .search.joint_constructor import JointOptimWrapperConstructor
from .search.linear_schedule import LinearScheduleHook
from .search.price import MacsPrice
from .search.regularized import RegularizedModel
from .search.search_constructor import SearchOptimWrapperConstructor
from .search.search_model import SearchModel
from .search.task_constructor import TaskOptimWrapperConstructor
from .search.temperature_decay import TemperatureDecayHook
from .search.warmup_switch import WarmupSwitchHook

__all__ = [
    'AdaptiveOneHotLoss', 'BiMaskGate', 'BilevelTrainLoop', 'FeatureTapHook', 'FlavaImageEncoder',
    'FlavaVQA', 'GateNoiseHook', 'GumbelChannelGate', 'InformationBottleneckHook',
    'InformationBottleneckLoss', 'InformationBottleneckMetric', 'IterBilevelTrainLoop',
    'JointOptimWrapperConstructor', 'KernelComplexityLoss', 'KernelComplexityMetric', 'LabelAnswer',
    'LinearScheduleHook', 'MOCA', 'MOCADecoder', 'MOCAHead', 'MacsPrice', 'MaskedImageHead',
    'MaskedSearchModel', 'NystromRefreshHook', 'OnlineCodebook', 'ProgressivePruningHook', 'QKMask',
    'RegularizedModel', 'RelaxedTopKGate', 'SNLIVE', 'SearchModel',
    'SearchOptimWrapperConstructor', 'TaskOptimWrapperConstructor', 'TemperatureDecayHook',
    'TokenizeQuestion', 'WarmupSwitchHook'
]
