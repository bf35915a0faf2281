"""The toy run of the kernel complexity hooks."""

import importlib.util
from pathlib import Path
from uuid import uuid4

import pytest


@pytest.fixture(scope='session')
def toy():
    """Module ``kernel_toy`` beside this file, whatever pytest's import mode."""
    path = Path(__file__).with_name('kernel_toy.py')
    spec = importlib.util.spec_from_file_location('kernel_toy', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def build(toy, tmp_path):
    """``build(**overrides)``: a Runner of the toy run in a folder of its own."""
    def make(work_dir=None, **overrides):
        return toy.make_runner(work_dir or tmp_path, uuid4().hex, **overrides)
    return make
