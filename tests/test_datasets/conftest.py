"""Digits on disk, shared by the tests of this folder."""

import pytest

from lab.digits import DigitsOptions, write_digits

OPTIONS = DigitsOptions(train_scenes=10, val_scenes=10)


@pytest.fixture(scope='session')
def digits_options():
    """Few scenes, everything else as by default."""
    return OPTIONS


@pytest.fixture(scope='session')
def digits_root(tmp_path_factory):
    """A folder that tests read and do not alter."""
    root = tmp_path_factory.mktemp('data') / 'digits'
    assert write_digits(root, OPTIONS)
    return root
