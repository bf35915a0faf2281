"""Channels of an MLP (KCR, section 3.1): the formula, and one function in three forms.

The host is one block of mmcv's ``FFN`` behind a norm, as in mmpretrain's transformers.
"""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.cnn.bricks.transformer import FFN
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from torch import nn

from mmkcr.apis import compress
from mmkcr.models import Searchable
from mmkcr.models.adapters import mlp_adapter
from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.selection import Put

D, HIDDEN = 16, 24
GATES = dict(type='mmkcr.GumbelChannelGate', min_size=1)


class Block(nn.Module):
    """``x + FFN(LN(x))``, as mmpretrain's transformers call it."""

    def __init__(self, drop_path=0., scale=0.5, norm=None, **kwargs):
        super().__init__()
        self.ln2 = norm or nn.LayerNorm(D, eps=1e-6)
        self.ffn = FFN(D, HIDDEN, act_cfg=dict(type='GELU'), layer_scale_init_value=scale,
                       dropout_layer=dict(type='DropPath', drop_prob=drop_path), **kwargs)

    def forward(self, x):
        return self.ffn(self.ln2(x), identity=x)


@mlp_adapter(f'{__name__}.Block')
def registered(block):
    """A block of one's own says itself which norm its MLP reads."""
    return [] if block.ffn.num_fcs > 2 else dict(
        path='ffn', inputs=('ffn.layers.0.0', ), output='ffn.layers.1', after='ffn.dropout_layer',
        scales=('ffn.gamma2', ), norm='ln2')


def dense(dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    block = Block(**kwargs)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    return block.to(dtype).eval()


def gated(kept, **kwargs):
    block = Searchable(dense(**kwargs), ['mlp_channels'], GATES)
    gate_of(block).alpha.data.fill_(-1.)[kept] = 1.
    return block.eval()


def sliced(kept, **kwargs):
    block = dense(**kwargs)
    space = Searchable(block, ['mlp_channels']).search_space
    space.slice_to(space.structure_for({'ffn.mlp_channels': kept}))
    return block


def gate_of(block):
    return block.search_space.gates()['ffn.mlp_channels']


def formula(block, g, x):
    """``y = x + g * MLP(g * LN(x))`` in NumPy."""
    def array(tensor):
        return tensor.detach().numpy()

    x, g = array(x), array(g)
    norm, first, second = block.ln2, block.ffn.layers[0][0], block.ffn.layers[1]
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    normed = (x - mean) / np.sqrt(variance + norm.eps) * array(norm.weight) + array(norm.bias)
    hidden = (g * normed) @ array(first.weight).T + array(first.bias)
    hidden = hidden * (1 + np.vectorize(math.erf)(hidden / 2**0.5)) / 2  # GELU
    out = hidden @ array(second.weight).T + array(second.bias)
    return torch.from_numpy(x + g * (array(block.ffn.gamma2.weight) * out))


subsets = st.sets(st.integers(0, D - 1), min_size=1).map(sorted).map(torch.tensor)


def tokens(*lead):
    return torch.randn(*lead, D, dtype=torch.float64)


def close(one, two, tolerance=1e-12):
    torch.testing.assert_close(one, two, rtol=0,
                               atol=tolerance * max(1., float(two.detach().abs().max())))


@pytest.mark.parametrize('mode', ['hard', 'soft', 'noisy'])
def test_the_formula(mode):
    block = gated(torch.tensor([0, 3, 4, 11]))
    gate = gate_of(block)
    if mode != 'hard':
        gate.train()
        gate.alpha.data.normal_()
    if mode == 'noisy':
        gate.resample(torch.Generator().manual_seed(1))
        gate.noise = gate.noise.double()
    assert ((gate() == 0) | (gate() == 1)).all() == (mode == 'hard')
    x = tokens(2, 5)
    close(block(x), formula(block, gate(), x))


def test_gradient_of_the_gate_is_that_of_the_formula():
    """Central differences of the NumPy formula, for every alpha."""
    block = gated(torch.arange(D))
    gate, x = gate_of(block).double().train(), tokens(3)
    gate.alpha.data.normal_()
    block(x).square().sum().backward()
    for unit in range(D):
        losses = []
        for step in (1e-5, -1e-5):
            alpha = gate.alpha.detach().clone()
            alpha[unit] += step
            g = torch.sigmoid(alpha / gate.temperature)
            losses.append(float(formula(block, g, x).square().sum()))
        difference = (losses[0] - losses[1]) / 2e-5
        assert float(gate.alpha.grad[unit]) == pytest.approx(difference, rel=1e-5, abs=1e-6)


@settings(max_examples=20, deadline=None)
@given(kept=subsets, lead=st.lists(st.integers(1, 3), max_size=3), grad=st.booleans())
def test_sliced_equals_gated_for_any_channels_and_shape(kept, lead, grad):
    x = tokens(*lead)
    expected = gated(kept)(x)
    with torch.set_grad_enabled(grad):
        close(sliced(kept)(x), expected)


def test_every_form_of_the_norm_and_the_sum_agrees():
    """With gradients and without, for a compiler; `test_plain` has those of an exporter."""
    block, x = sliced(torch.tensor([0, 1, 6, 15])), tokens(2, 3)
    expected = block(x)
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, backend='aot_eager')
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            close(compiled(x), expected)


def test_gradients_are_those_of_the_gated_form():
    kept = torch.tensor([0, 3, 4, 9, 15])
    x = tokens(2, 5)
    gradients = []
    for block in (gated(kept), sliced(kept)):
        inputs = x.clone().requires_grad_()
        block(inputs).square().sum().backward()
        ffn = block.ffn
        gradients.append((inputs.grad, block.ln2.weight.grad, ffn.layers[0][0].weight.grad,
                          ffn.layers[1].bias.grad, ffn.gamma2.weight.grad))
    full, part = gradients
    close(part[0], full[0])
    close(part[1], full[1][kept])
    close(part[2], full[2][:, kept])
    close(part[3], full[3][kept])
    close(part[4], full[4][kept])
    dropped = [unit for unit in range(D) if unit not in kept.tolist()]
    assert not full[1][dropped].any() and not full[4][dropped].any()


def test_the_input_is_left_alone():
    block, x = sliced(torch.arange(4)), tokens(2)
    before = x.clone()
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            block(x)
        assert torch.equal(x, before)


def test_a_site_that_keeps_everything_is_the_dense_layer():
    x, block = tokens(2, 3), sliced(torch.arange(D))
    assert torch.equal(block(x), dense()(x))
    assert type(block.ln2) is nn.LayerNorm  # no selection where nothing is selected


def test_drop_path_drops_the_branch_of_a_sample():
    block = sliced(torch.arange(0, D, 2), drop_path=0.5).train()
    x = tokens(64, 3)
    out = block(x)
    dropped = (out == x).flatten(1).all(1)
    assert 10 < int(dropped.sum()) < 54
    assert torch.equal(out[:, :, 1::2], x[:, :, 1::2])


@pytest.mark.parametrize('make', [sliced, gated])
def test_checkpointing_changes_no_gradient(make):
    from torch.utils.checkpoint import checkpoint
    block = make(torch.tensor([1, 2, 7]))
    x = tokens(2, 4).requires_grad_()
    plain = torch.autograd.grad(block(x).square().sum(), x)[0]
    again = checkpoint(block, x, use_reentrant=False)
    close(torch.autograd.grad(again.square().sum(), x)[0], plain)


@pytest.mark.parametrize('cache', [True, False])
@pytest.mark.parametrize('make', [sliced, gated])
def test_autocast_stays_near_full_precision(make, cache):
    block = make(torch.tensor([1, 2, 7, 8]), dtype=torch.float32)
    x = tokens(2, 4).float()
    expected = block(x)
    with torch.autocast('cpu', torch.bfloat16, cache_enabled=cache):
        found = block(x)
    assert found.dtype == x.dtype
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize('make', [sliced, gated])
def test_half_precision_weights_keep_their_type(make):
    block = make(torch.tensor([1, 2, 7, 8]), dtype=torch.bfloat16)
    assert block(tokens(2, 4).bfloat16()).dtype == torch.bfloat16


def test_keys_are_those_of_the_dense_modules_plus_the_channels():
    kept, keys = torch.arange(5), sorted(dense().state_dict())
    assert sorted(sliced(kept).state_dict()) == sorted([*keys, 'kept_units'])
    assert sorted(gated(kept).state_dict()) == sorted([*keys, 'ffn.mlp_channels.gate.alpha'])


@pytest.mark.parametrize('affine, bias', [(False, False), (True, False)])
def test_norms_without_parameters(affine, bias):
    kept, x = torch.tensor([2, 5]), tokens(3)
    block = sliced(kept, norm=nn.LayerNorm(D, elementwise_affine=affine, bias=bias))
    expected = nn.functional.layer_norm(x, (D, ), eps=block.ln2.eps)[:, kept]
    close(block.ln2(x), expected * block.ln2.weight if affine else expected)


def test_a_sliced_layer_is_sliced_again():
    """The kept channels are those of the dense network, after any number of steps."""
    block, x = gated(torch.tensor([1, 2, 7, 8])), tokens(3)
    expected = block(x)
    first = copy.deepcopy(block)
    site = first.search_space.sites['ffn.mlp_channels']
    site.slice_to(torch.tensor([1, 2, 5, 7, 8]))
    assert isinstance(first.ln2, SlicedLayerNorm) and isinstance(first.ffn.dropout_layer[-1], Put)
    site.slice_to(torch.tensor([1, 2, 7, 8]))
    assert first.ln2.kept.tolist() == [1, 2, 7, 8]
    close(first(x), expected)
    assert torch.equal(block(x), expected)  # the original is as it was


@pytest.mark.parametrize('change, message', [
    (dict(norm=nn.BatchNorm1d(D)), 'statistics of `BatchNorm1d` over part of the channels'),
    (dict(num_fcs=3), 'an `FFN` of 3 layers, where two are expected, at `ffn`'),
])
def test_refuses_other_modules(change, message):
    with pytest.raises(ValueError, match=message):
        Searchable(Block(**change), ['mlp_channels'], GATES)


class OwnBlock(nn.Module):
    """A block of one's own with the names that the hosts have."""

    def __init__(self):
        super().__init__()
        self.norm2, self.ffn = nn.LayerNorm(D), FFN(D, HIDDEN, add_identity=False)

    def forward(self, x):
        return x + self.ffn(self.norm2(x))


class OwnFFN(FFN):
    """It adds what it reads."""

    def forward(self, x, identity=None):
        return super().forward(x, identity=identity) + x


def own_block(own):
    class Net(nn.Sequential):
        """Tokens of a map, and a block."""

    torch.manual_seed(0)
    block = OwnBlock() if own == 'OwnBlock' else TransformerEncoderLayer(D, 2, HIDDEN)
    if own == 'OwnFFN':  # of an adapter's class, in a block of a library
        block.ffn = OwnFFN(D, HIDDEN, add_identity=False)
    return Net(nn.Conv2d(3, D, 4, 4), nn.Flatten(2), Swap(), block)


@pytest.mark.parametrize('own', ['OwnBlock', 'OwnFFN'])
def test_norms_in_classes_that_nobody_registered_are_refused(own):
    images = torch.randn(4, 3, 16, 16)
    with pytest.raises(ValueError, match=f'`mlp_channels` .`{own}` is no registered class'):
        compress(own_block(own), images, '90%', ['mlp_channels'], input_shape=(3, 16, 16))
    compress(own_block(own), images, '90%', ['mlp_hidden'], input_shape=(3, 16, 16))


class Swap(nn.Module):
    def forward(self, x):
        return x.mT
