"""What a user imports: build, compress, slim, count, infer."""

from .compress import CompressResult, compress
from .count import count_macs, macs_report
from .fold_masks import fold_masks
from .inference import inferencer, list_models, model_config, register_models
from .slim import slim

__all__ = ['CompressResult', 'compress', 'count_macs', 'fold_masks', 'inferencer', 'list_models',
           'macs_report', 'model_config', 'register_models', 'slim']
