"""Hooks: schedules, refreshes and taps."""

from .atomic_checkpoint import AtomicCheckpointHook
from .checkpoint_guard import CheckpointGuardHook
from .class_check import ClassCheckHook
from .exact_resume import ExactResumeHook
from .feature_tap import FeatureTapHook
from .finite import FiniteHook
from .gate_noise import GateNoiseHook
from .information_bottleneck import InformationBottleneckHook
from .linear_schedule import LinearScheduleHook
from .nystrom_refresh import NystromRefreshHook
from .preemption import PreemptionHook
from .progressive_pruning import ProgressivePruningHook
from .refresh import RefreshHook
from .sync_batch_norm import SyncBatchNormHook
from .temperature_decay import TemperatureDecayHook
from .warmup_switch import WarmupSwitchHook

__all__ = [
    'AtomicCheckpointHook',
    'CheckpointGuardHook',
    'ClassCheckHook',
    'ExactResumeHook',
    'FeatureTapHook',
    'FiniteHook',
    'GateNoiseHook',
    'InformationBottleneckHook',
    'LinearScheduleHook',
    'NystromRefreshHook',
    'PreemptionHook',
    'ProgressivePruningHook',
    'RefreshHook',
    'SyncBatchNormHook',
    'TemperatureDecayHook',
    'WarmupSwitchHook',
]
