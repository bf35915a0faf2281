"""The toy run of the kernel complexity hooks."""

from uuid import uuid4

import pytest

from . import kernel_toy


@pytest.fixture(scope='session')
def toy():
    """Module ``kernel_toy`` beside this file."""
    return kernel_toy


@pytest.fixture
def build(toy, tmp_path):
    """``build(**overrides)``: a Runner of the toy run in a folder of its own."""
    def make(work_dir=None, **overrides):
        return toy.make_runner(work_dir or tmp_path, uuid4().hex, **overrides)
    return make
