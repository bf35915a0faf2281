"""The commands' steps as functions."""

from .count import count_macs, macs_report
from .inference import inferencer, list_models, model_config, register_models
from .slim import slim

__all__ = ['count_macs', 'inferencer', 'list_models', 'macs_report', 'model_config',
           'register_models', 'slim']
