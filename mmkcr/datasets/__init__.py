"""Data sets, and the check that they are on disk."""

from .data_check import CheckSegLabels, check_data_folders
from .part import ClassSubset, DatasetPart

__all__ = ['CheckSegLabels', 'ClassSubset', 'DatasetPart', 'check_data_folders']
