"""Sizes on offer when a budget is shared out."""

from types import SimpleNamespace

import pytest

from mmkcr.closed_form.options import CompressOptions
from mmkcr.closed_form.share_out import size_options


@pytest.mark.parametrize('width, divisor, step', [
    (3072, 8, 8), (3072, 64, 64), (64, 8, 8), (64, 16, 16), (64, 64, 16), (32, 64, 8), (31, 64, 1),
    (16, 8, 1), (64, 96, 12), (64, 33, 1), (30, 12, 6), (48, 12, 12), (3, 1, 1)])
def test_sizes_in_every_head_are_multiples(width, divisor, step):
    """So that a GPU's matrix units take them: halves of the divisor where heads are narrow."""
    for heads in (1, 3, 12):
        site = SimpleNamespace(total=width * heads, rows=heads, operators=lambda: ())
        assert size_options(site, CompressOptions(divisor, min_share=0.)) == [
            heads * size for size in sorted({*range(step, width + 1, step), width})]
