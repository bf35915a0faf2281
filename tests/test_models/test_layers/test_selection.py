"""Taking channels and putting them back: the same in every layout and mode."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mmkcr.core import Axis, slice_axes
from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.plain import make_ours, make_plain
from mmkcr.models.layers.selection import Put, Take, largest_group, put

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


class Operators(TorchDispatchMode):
    """Names of the operators that run."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names = [*getattr(self, 'names', []), str(func)]
        return func(*args, **(kwargs or {}))


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
    found = Take(kept, 6, dim)(x)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    if learn:
        assert_same_gradients(found, expected, leaf)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), layout=st.sampled_from(sorted(LAYOUTS)), learn=st.booleans())
def test_put_equals_a_product_with_the_selection(data, layout, learn):
    """``put`` is the transpose of a selection: x -> S^T x with the selection matrix S (K, D)."""
    shape, dim, arrange = LAYOUTS[layout]
    kept = places(data.draw)
    leaf = torch.randn(shape, dtype=torch.float64).requires_grad_(learn)
    x = arrange(leaf).index_select(dim, kept)
    matrix = torch.eye(6, dtype=torch.float64)[kept]
    expected = (x.movedim(dim, -1) @ matrix).movedim(-1, dim)
    found = put(x, kept, 6, dim)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)
    if learn:
        assert_same_gradients(found, expected, leaf)


@pytest.mark.parametrize('layout', ['tokens', 'maps'])
def test_an_exporter_sees_no_scatter(layout, monkeypatch):
    shape, dim, arrange = LAYOUTS[layout]
    kept = torch.tensor([0, 2, 5])
    x = arrange(torch.randn(shape)).index_select(dim, kept)
    expected = put(x, kept, 6, dim)
    monkeypatch.setattr(torch.compiler, 'is_exporting', lambda: True)
    with Operators() as operators:
        found = put(x, kept, 6, dim)
    assert torch.equal(found, expected)
    assert not [name for name in operators.names if 'index_copy' in name or 'scatter' in name]


# ---- forms for runtimes ------------------------------------------------------------------------


def neighbours(places, group):
    return torch.tensor([group * place + i for place in places for i in range(group)])


@settings(max_examples=80, deadline=None)
@given(data=st.data(), layout=st.sampled_from(sorted(LAYOUTS)),
       form=st.sampled_from(['scatter', 'gather', 'elements', 'grouped']),
       group=st.sampled_from([1, 2, 3, 6]))
def test_every_form_gives_the_same(data, layout, form, group):
    shape, dim, arrange = LAYOUTS[layout]
    kept = neighbours(sorted(data.draw(st.sets(st.integers(0, 6 // group - 1), min_size=1))), group)
    x = arrange(torch.randn(shape))
    selections = Take(kept, 6, dim), Put(kept, 6, dim)
    few = x.index_select(dim, kept)
    for selection, given_x, expected in zip(selections, (x, few), (few, put(few, kept, 6, dim))):
        selection.set_form(form, group if form == 'grouped' else 1)
        torch.testing.assert_close(selection(given_x), expected, atol=0, rtol=0)
        assert not selection.state_dict()


@settings(max_examples=50, deadline=None)
@given(places=st.sets(st.integers(0, 15), min_size=1))
def test_largest_group_is_the_largest(places):
    mask = [place in places for place in range(16)]
    group = largest_group(torch.tensor(sorted(places)), 16)
    together = [all(len(set(mask[i:i + size])) == 1 for i in range(0, 16, size))
                for size in (1, 2, 4, 8, 16)]
    assert group == 2 ** (sum(together) - 1)


def test_contiguous_channels_are_sliced_in_any_form():
    selections = Take(torch.tensor([2, 3, 4]), 6), Put(torch.tensor([2, 3, 4]), 6)
    for selection, width in zip(selections, (6, 3)):
        selection.set_form('elements')
        with Operators() as operators:
            selection(torch.randn(2, 5, width))
        assert not any('index' in name or 'gather' in name for name in operators.names)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), layout=st.sampled_from(['tokens', 'maps']),
       name=st.sampled_from(['Take', 'Put', 'SlicedLayerNorm']), training=st.booleans())
def test_a_graph_of_torch_is_the_same(data, layout, name, training):
    """Outputs, gradients, keys and mode; also when it is copied, pickled, or made ours again."""
    shape, dim, _ = LAYOUTS[layout]
    kept = places(data.draw)
    if name == 'SlicedLayerNorm':
        shape, dim, layer = LAYOUTS['tokens'][0], -1, nn.LayerNorm(6)
        for value in layer.parameters():
            nn.init.normal_(value)
        slice_axes([Axis(layer, 'weight'), Axis(layer, 'bias')], kept)
        layer.normalized_shape = (6, )
        layer = SlicedLayerNorm.convert_from(layer, kept)
    else:
        layer = dict(Take=Take, Put=Put)[name](kept, 6, dim if dim == -1 else -3)
    x = torch.randn(shape)
    x = (x.index_select(dim, kept) if name == 'Put' else x).requires_grad_()
    ours = nn.Sequential(layer).train(training)
    plain = copy.deepcopy(ours)
    make_plain(plain)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(plain)))
    assert b'mmkcr' not in pickle.dumps(plain)
    again = copy.deepcopy(copied)
    make_ours(again)
    assert type(again[0]) is type(layer) and vars(again[0]).keys() == vars(layer).keys()
    expected = ours(x)
    for model in (plain, copied, again):
        assert torch.equal(model(x), expected)
        assert_same_gradients(model(x), expected, x)
        assert model.state_dict().keys() == ours.state_dict().keys()
        assert all(module.training is training for module in model.modules())
