"""Data sets, and the check that they are on disk."""

from mmkcr import registry  # noqa: F401  (before any host library)
from .class_subset import ClassSubset
from .data_check import check_data_folders
from .label_check import CheckSegLabels
from .part import DatasetPart

__all__ = ['CheckSegLabels', 'ClassSubset', 'DatasetPart', 'check_data_folders']
