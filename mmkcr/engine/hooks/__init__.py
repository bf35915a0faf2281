"""Hooks: schedules, refreshes and taps."""

from .class_check import ClassCheckHook
from .feature_tap import FeatureTapHook
from .finite import FiniteHook
from .gate_noise import GateNoiseHook
from .information_bottleneck import InformationBottleneckHook
from .linear_schedule import LinearScheduleHook
from .nystrom_refresh import NystromRefreshHook
from .progressive_pruning import ProgressivePruningHook
from .refresh import RefreshHook
from .sync_batch_norm import SyncBatchNormHook
from .temperature_decay import TemperatureDecayHook
from .warmup_switch import WarmupSwitchHook

__all__ = [
    'ClassCheckHook',
    'FeatureTapHook',
    'FiniteHook',
    'GateNoiseHook',
    'InformationBottleneckHook',
    'LinearScheduleHook',
    'NystromRefreshHook',
    'ProgressivePruningHook',
    'RefreshHook',
    'SyncBatchNormHook',
    'TemperatureDecayHook',
    'WarmupSwitchHook',
]
