"""What configs name of the engine: imported when the first is asked for."""

# ruff: noqa: F401
from .checks import ClassCheckHook, FiniteHook
from .compressed_config import CompressionRunner
from .layer_decay import LayerDecayOptimWrapperConstructor
from .resume.atomic_checkpoint import AtomicCheckpointHook
from .resume.checkpoint_guard import CheckpointGuardHook
from .resume.exact_resume import ExactResumeHook
from .resume.preemption import PreemptionHook
from .sync_batch_norm import SyncBatchNormHook
