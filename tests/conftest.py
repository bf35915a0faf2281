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


@pytest.fixture(scope='session')
def digits_options():
    """Few scenes, everything else as by default."""
    from lab.digits import DigitsOptions
    return DigitsOptions(train_scenes=10, val_scenes=10)


@pytest.fixture(scope='session')
def digits_root(digits_options, tmp_path_factory):
    """A folder with the digits that tests read and do not alter."""
    from lab.digits import write_digits
    root = tmp_path_factory.mktemp('data') / 'digits'
    assert write_digits(root, digits_options)
    return root
