"""Taking channels and putting them back: the same in every layout and mode."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.models.layers.selection import add, spread, take, widen

LAYOUTS = {
    'tokens': ((2, 5, 6), -1, lambda x: x),
    'every second token': ((2, 5, 6), -1, lambda x: x.repeat_interleave(2, 1)[:, ::2]),
    'maps': ((2, 6, 3, 4), 1, lambda x: x),
    'maps, channels last': ((2, 6, 3, 4), 1,
                            lambda x: x.contiguous(memory_format=torch.channels_last)),
    'part of maps': ((2, 6, 3, 4), 1, lambda x: x.repeat(1, 2, 1, 1)[:, :6]),
    'one position': ((2, 6, 1, 1), 1, lambda x: x),
    'one token': ((6, ), -1, lambda x: x),
    'no image': ((0, 6, 3, 4), 1, lambda x: x),
}


def assert_same_gradients(found, expected, leaf):
    weight = torch.randn_like(found)
    torch.testing.assert_close(*(torch.autograd.grad((y * weight).sum(), leaf, retain_graph=True)[0]
                                 for y in (found, expected)))


def places(draw):
    return torch.tensor(sorted(draw(st.sets(st.integers(0, 5), min_size=1))))


@settings(max_examples=80, deadline=None)
@given(data=st.data(), layout=st.sampled_from(sorted(LAYOUTS)), learn=st.booleans())
def test_take_equals_indexing(data, layout, learn):
    shape, dim, arrange = LAYOUTS[layout]
    kept = places(data.draw)
    leaf = torch.randn(shape, dtype=torch.float64).requires_grad_(learn)
    x = arrange(leaf)
    expected = x.movedim(dim, -1)[..., kept].movedim(-1, dim)
    found = take(x, kept, dim)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    if learn:
        assert_same_gradients(found, expected, leaf)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), layout=st.sampled_from(sorted(LAYOUTS)), other=st.sampled_from(
    ['maps', 'maps, channels last']), learn=st.booleans())
def test_add_equals_the_sum_with_zeros(data, layout, other, learn):
    shape, dim, arrange = LAYOUTS[layout]
    kept = places(data.draw)
    leaf = torch.randn(shape, dtype=torch.float64).requires_grad_(learn)
    x = arrange(leaf)
    out = take(torch.randn(shape, dtype=torch.float64), kept, dim).float()
    out = LAYOUTS[other][2](out) if out.ndim == 4 else out
    expected = x + spread(out, kept, 6, dim)
    before = x.detach().clone()
    with torch.set_grad_enabled(learn):
        found = add(x, kept, out, dim)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    assert found.dtype == torch.float64
    # where autograd may need the input, nothing is written into it
    torch.testing.assert_close(x.detach(), before if learn else expected, atol=0, rtol=0)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), layout=st.sampled_from(sorted(LAYOUTS)), learn=st.booleans())
def test_widen_equals_ordinary_operators(data, layout, learn):
    shape, dim, arrange = LAYOUTS[layout]
    kept = places(data.draw)
    leaf = torch.randn(shape, dtype=torch.float64).requires_grad_(learn)
    x = take(arrange(leaf), kept, dim)
    expected, found = spread(x, kept, 6, dim), widen(x, kept, 6, dim)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    if learn:
        assert_same_gradients(found, expected, leaf)


@pytest.mark.parametrize('layout', ['maps', 'maps, channels last'])
def test_layout_stays_in_eager_inference(layout):
    shape, dim, arrange = LAYOUTS[layout]
    x, kept = arrange(torch.randn(shape)), torch.tensor([0, 2, 5])
    with torch.no_grad():
        taken = take(x, kept, dim)
        assert taken.movedim(dim, -1).is_contiguous() == x.movedim(dim, -1).is_contiguous()
        expected = x + spread(taken, kept, 6, dim)
        found = add(x, kept, taken, dim)
    assert found is x  # in place
    torch.testing.assert_close(found, expected)
    assert take(x, torch.arange(6), dim) is x
