"""The split of the source digits and their rendering."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.digit_sources import render, source_digits, split_sources


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 0.9), st.integers(0, 2**31))
def test_split_is_a_stratified_partition(val_ratio, seed):
    labels = source_digits()[1]
    split = split_sources(val_ratio, seed)
    assert np.array_equal(np.sort(np.concatenate(list(split.values()))), np.arange(1797))
    share = np.bincount(labels[split['val']], minlength=10) / np.bincount(labels)
    assert np.abs(share - val_ratio).max() < 2 / 174  # 174 digits in the smallest class
    assert np.array_equal(split['val'], split_sources(val_ratio, seed)['val'])


@given(st.integers(0, 1796), st.integers(1, 8))
def test_source_can_be_read_back(index, times):
    source = source_digits()[0][index]
    image = render(source, 8 * times)
    assert image.shape == (8 * times,) * 2 and image.dtype == np.uint8
    assert np.array_equal(np.round(image[::times, ::times] / 255 * 16), source)
    assert np.array_equal(image, image[::times, ::times].repeat(times, 0).repeat(times, 1))
