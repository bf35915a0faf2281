"""Hooks of any run."""

from .class_check import ClassCheckHook
from .finite import FiniteHook
from .sync_batch_norm import SyncBatchNormHook

__all__ = ['ClassCheckHook', 'FiniteHook', 'SyncBatchNormHook']
