"""Fixtures of the whole suite."""

import logging

import pytest
import torch

import mmkcr  # noqa: F401  (before any host library: makes torchvision importable)

torch.set_num_threads(1)


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
