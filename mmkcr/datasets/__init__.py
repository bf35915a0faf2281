"""Data sets, and the check that they are on disk."""

from .class_subset import ClassSubset
from .data_check import check_data_folders
from .fold_part import FoldPart
from .label_check import CheckSegLabels

__all__ = ['CheckSegLabels', 'ClassSubset', 'FoldPart', 'check_data_folders']
