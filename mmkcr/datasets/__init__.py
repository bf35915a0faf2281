"""Data sets, and the check that they are on disk."""

from mmkcr import registry  # noqa: F401  (before any host library)
from .class_subset import ClassSubset
from .data_check import check_data_folders
from .fold_part import FoldPart
from .label_check import CheckSegLabels
from .part import DatasetPart
from .vqa import SNLIVE, LabelAnswer, TokenizeQuestion

__all__ = [
    'CheckSegLabels', 'ClassSubset', 'DatasetPart', 'FoldPart', 'LabelAnswer', 'SNLIVE',
    'TokenizeQuestion', 'check_data_folders'
]
