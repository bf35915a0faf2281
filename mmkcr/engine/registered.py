"""What configs name of the engine: imported when the first is asked for."""

from .compressed_config import CompressionRunner  # noqa: F401
from .hooks import *  # noqa: F401,F403
from .optimizers import *  # noqa: F401,F403
from .resume.atomic_checkpoint import AtomicCheckpointHook  # noqa: F401
from .resume.checkpoint_guard import CheckpointGuardHook  # noqa: F401
from .resume.exact_resume import ExactResumeHook  # noqa: F401
from .resume.preemption import PreemptionHook  # noqa: F401
