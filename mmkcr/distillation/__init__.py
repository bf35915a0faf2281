"""Distillation: the dense network teaches the compressed one on unlabelled images.

Read in this order:

1. ``run.py``: :func:`distil`, the whole way; MMEngine's runner trains.
2. ``options.py``: the options, and how a length is written.
3. ``model.py``: ``DistilModel`` holds student, average and teacher, and compares their outputs.
4. ``hook.py``: ``DistilHook`` sets the rate of each step, averages the weights and keeps the best.
5. ``augmentation.py``: images are cropped, mirrored, recoloured and mixed.
"""
# ruff: noqa: F401

from .options import DistilOptions
from .run import DistilResult, distil
