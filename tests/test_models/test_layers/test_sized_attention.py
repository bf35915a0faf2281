"""Attention layers for any number of heads compute what their hosts' layers do."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models.backbones.mixmim import MixMIMWindowAttention
from mmpretrain.models.backbones.twins import LocallyGroupedSelfAttention
from mmpretrain.models.utils import WindowMSA
from mmpretrain.models.utils.attention import BEiTAttention, WindowMSAV2
from timm.layers import AttentionRope
from timm.models.beit import Attention
from timm.models.eva import EvaAttention
from timm.models.swin_transformer_v2 import WindowAttention
from torch import nn

from mmkcr.models.adapters.attentions import rotary_attention, torch_attention
from mmkcr.models.layers.plain import make_plain
from mmkcr.models.layers.sized_attention import SizedMultiheadAttention
from mmkcr.models.layers.take_over import take_over
from mmkcr.models.layers.window_attention import (
    SizedBEiTAttention,
    SizedGroupedAttention,
    SizedMixMIMAttention,
    SizedWindowAttention,
    SizedWindowAttentionV2,
)


@pytest.mark.parametrize('size', [(14, 14), (14, 9), (9, 14), (5, 7), (9, 5)], ids=str)
def test_grouped_attention_is_the_hosts_where_windows_do_not_fit(size):
    """The host masks its padding only where both sides have some."""
    host = LocallyGroupedSelfAttention(16, 4, qkv_bias=True, window_size=7).double().eval()
    for parameter in host.parameters():
        parameter.data.normal_()
    ours = take_over(SizedGroupedAttention, copy.deepcopy(host))
    tokens = torch.randn(2, size[0] * size[1], 16, dtype=torch.float64)
    torch.testing.assert_close(ours(tokens, size), host(tokens, size), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('cls', [EvaAttention, AttentionRope])
def test_rotary_attention_is_the_hosts_where_it_is_causal(cls):
    host = cls(16, 4, scale_norm=False).double().eval()
    ours = rotary_attention(host)['opened'](copy.deepcopy(host))
    tokens, rope = (torch.randn(*size, dtype=torch.float64) for size in ((2, 9, 16), (8, 8)))
    for causal in (False, True):
        torch.testing.assert_close(ours(tokens, rope=rope, is_causal=causal),
                                   host(tokens, rope=rope, is_causal=causal))
    plain = nn.Sequential(ours)
    make_plain(plain)
    for graph in (plain[0], pickle.loads(pickle.dumps(plain))[0]):
        for causal in (False, True):
            torch.testing.assert_close(graph(tokens, rope, is_causal=causal),
                                       host(tokens, rope, is_causal=causal))


def window(cls, **options):
    return cls(16, num_heads=4, window_size=(3, 3), **options)


def scores(*size, hidden=float('-inf')):
    """Masks of scores in every form: none, zeros and ``hidden``, or a learned bias from zero."""
    size = tuple(size)
    return st.sampled_from([None, torch.zeros(size, dtype=torch.float64), torch.randn(
        size, dtype=torch.float64), torch.eye(size[-1], dtype=torch.float64).mul(
            hidden).nan_to_num(0, 0, hidden).expand(size)])


def padding(*size):
    hidden = torch.zeros(size, dtype=torch.bool)
    hidden[..., -2:] = True
    return st.sampled_from([None, hidden, torch.zeros(size, dtype=torch.float64).masked_fill(
        hidden, float('-inf'))])


#: Layer of a host, class of ours, tokens, and what its optional arguments may be.
LAYERS = dict(
    swin=(lambda: window(WindowMSA, qkv_bias=True), SizedWindowAttention, (6, 9),
          dict(mask=scores(3, 9, 9))),
    swin_v2=(lambda: window(WindowMSAV2), SizedWindowAttentionV2, (6, 9),
             dict(mask=scores(3, 9, 9))),
    mixmim=(lambda: window(MixMIMWindowAttention), SizedMixMIMAttention, (6, 9), dict(
        mask=st.sampled_from([None, torch.randint(2, (6, 9, 1)).double()]))),
    beit=(lambda: window(BEiTAttention, use_rel_pos_bias=True), SizedBEiTAttention, (2, 10),
          dict(rel_pos_bias=scores(4, 10, 10))),
    timm_swin_v2=(lambda: window(WindowAttention), SizedWindowAttentionV2, (6, 9),
                  dict(mask=scores(3, 9, 9))),
    timm_beit=(lambda: window(Attention), SizedBEiTAttention, (2, 10),
               dict(shared_rel_pos_bias=scores(4, 10, 10))),
    torch=(lambda: nn.MultiheadAttention(16, 4), SizedMultiheadAttention, (5, 3), dict(
        attn_mask=st.one_of(scores(5, 5), scores(12, 5, 5), padding(5, 5)),
        key_padding_mask=padding(3, 5))))


@pytest.mark.parametrize('name', LAYERS)
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_graph_with_optional_arguments_is_the_hosts_layer(name, data):
    """Outputs and gradients, with and without each argument; also pickled."""
    build, cls, size, optional = LAYERS[name]
    host = build().double()
    for parameter in host.parameters():
        nn.init.normal_(parameter)
    plain = nn.Sequential(take_over(cls, copy.deepcopy(host)))
    make_plain(plain)
    again = pickle.loads(pickle.dumps(plain))
    assert type(plain[0]) is not cls
    x = torch.randn(*size, 16, dtype=torch.float64, requires_grad=True)
    given = {key: data.draw(value, key) for key, value in optional.items()}
    given = {key: value if value is None or 'bias' not in key else value.clone().requires_grad_()
             for key, value in given.items()}
    found = []
    for layer in (host, plain[0], again[0]):
        y = layer(*(x, ) * (3 if name == 'torch' else 1), **given)
        y = y[0] if isinstance(y, tuple) else y
        inputs = [x, *(value for value in given.values()
                       if value is not None and value.requires_grad)]
        found.append((y, *torch.autograd.grad((y * torch.arange(y.numel()).view_as(y)).sum(),
                                              inputs)))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-9, atol=1e-9)


def test_a_graph_that_drops_weights_knows_its_mode():
    host = nn.MultiheadAttention(16, 4, dropout=0.4).double()
    plain = nn.Sequential(torch_attention(SimpleNamespace(attn=host))['opened'](
        copy.deepcopy(host)))
    make_plain(plain)
    plain = pickle.loads(pickle.dumps(plain))
    x = torch.randn(5, 3, 16, dtype=torch.float64)
    found = []
    for mode in (True, False):
        for layer in (host, plain[0]):
            torch.manual_seed(3)  # of what is dropped
            found.append(layer.train(mode)(x, x, x)[0])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[3], found[2], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(found[0], found[2])
