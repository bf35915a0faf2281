"""Fixtures of the whole suite."""

import gc
import logging
from pathlib import Path

import pytest
import torch

import mmkcr  # noqa: F401  (before any host library: makes torchvision importable)

torch.set_num_threads(1)


_GROWTH = 2**29  # bytes
_resident = [0]


def _resident_bytes():
    return int(Path('/proc/self/statm').read_text().split()[1]) * 4096


@pytest.fixture(autouse=True)
def _freed():
    """Models are circles of references, whose tensors Python's collector does not count."""
    yield
    if _resident_bytes() > _resident[0] + _GROWTH:
        gc.collect()
        _resident[0] = _resident_bytes()


@pytest.fixture
def two_threads():
    """Both cores, for the few tests that compute for long."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _isolated():
    """Seeded, without the default scope or message hub that a Runner leaves behind."""
    torch.manual_seed(0)
    logging.getLogger('mmengine').setLevel(logging.WARNING)
    yield
    from mmengine.logging import MessageHub, MMLogger
    from mmengine.registry import DefaultScope
    for manager in (DefaultScope, MessageHub, MMLogger):
        manager._instance_dict.clear()
