"""Runs that were stopped or killed go on as if they had not been, and refuse what does not fit."""

from .atomic_checkpoint import AtomicCheckpointHook
from .checkpoint_guard import CheckpointGuardHook
from .exact_resume import ExactResumeHook
from .preemption import PreemptionHook

__all__ = ['AtomicCheckpointHook', 'CheckpointGuardHook', 'ExactResumeHook', 'PreemptionHook']
