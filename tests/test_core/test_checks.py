"""What is finite, and messages of other libraries' errors within a sentence."""

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.core.checks import all_finite, one_line


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16, torch.float64,
                                   torch.complex64, torch.int64])
@given(shape=st.lists(st.integers(0, 40), max_size=3), places=st.lists(st.tuples(
    st.integers(0), st.sampled_from(['nan', 'inf', '-inf', '3e38', '-3e38', '0'])), max_size=4),
    step=st.integers(1, 3))
@settings(deadline=None)
def test_as_torch_says(dtype, shape, places, step):
    value = torch.randn(shape).mul(9).to(dtype)
    for place, number in places if value.numel() and dtype != torch.int64 else ():
        value.view(-1)[place % value.numel()] = float(number)
    if shape:
        value = value[..., ::step]
    assert all_finite(value) == bool(value.isfinite().all())


def test_a_message_is_one_line_that_is_never_empty():
    assert one_line(ValueError('expected\n  one,\tfound two')) == 'expected one, found two'
    assert one_line(KeyError()) == 'KeyError' and one_line(OSError(' \n')) == 'OSError'
    assert one_line(OSError('a ' * 400)) == ('a ' * 400)[:300]


def test_messages_are_shortened_in_one_place():
    package = Path(__file__).parents[2] / 'mmkcr'
    found = {str(path.relative_to(package)) for path in package.rglob('*.py')
             if re.search(r'join\(str\(error\)\.split', path.read_text())}
    assert found == {'core/checks.py'}
