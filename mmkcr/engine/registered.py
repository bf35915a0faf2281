"""Classes of the engine that configs name: imported when the first is asked for."""

# ruff: noqa: F401
from .checks import ClassCheckHook, FiniteHook
from .compressed_config import CompressionRunner
from .layer_decay import LayerDecayOptimWrapperConstructor
from .resume.checkpoint_guard import CheckpointGuardHook
from .resume.checkpoints import AtomicCheckpointHook, PreemptionHook
from .resume.exact_resume import ExactResumeHook
from .sync_batch_norm import SyncBatchNormHook
