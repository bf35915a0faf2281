"""Distillation: the dense network teaches the compressed one on unlabelled images.

Read in this order:

1. ``run.py``: :func:`distil`, the whole way, and its result.
2. ``options.py``: the options, and the form of a length.
3. ``model.py``: ``DistilModel`` holds student, average and teacher, and compares their outputs.
4. ``training.py``: ``Training`` takes steps and gives the state that a killed run must find again.
5. ``augmentation.py``: images are cropped, mirrored, recoloured and mixed.
6. ``given.py``: networks and images are looked at before work begins, and identified.
"""
# ruff: noqa: F401

from .options import DistilOptions
from .run import DistilResult, check_length, distil
