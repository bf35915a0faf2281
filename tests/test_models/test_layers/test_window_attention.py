"""Fused window attention is the host's, in every state of the backbone and at every size."""


import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models.utils import ShiftWindowMSA
from torch.utils._python_dispatch import TorchDispatchMode

from lab.attention_tap import AttentionTap
from mmkcr.apis import count_macs, slim
from mmkcr.models import KCRSwinTransformer
from mmkcr.models.layers.window_attention import FusedWindowMSA, fuse_window_attention

FUSED_KERNEL = 'aten._scaled_dot_product_flash_attention_for_cpu.default'
SWIN = dict(arch=dict(embed_dims=12, depths=[2, 2], num_heads=[2, 4]), img_size=56,
            window_size=4, patch_size=4, drop_path_rate=0., out_indices=(0, 1))
GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)


class Operators(TorchDispatchMode):
    """Names of the operators that run."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names = [*getattr(self, 'names', []), str(func)]
        return func(*args, **(kwargs or {}))


def pair(shift=2, window=4, **kwargs):
    """The host's layer and ours with the same weights, large enough for every term to show."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList(
        ShiftWindowMSA(12, 2, window, shift, **kwargs) for _ in range(2)).double()
    for parameter in layers[0].parameters():
        parameter.data.normal_()
    layers[1].load_state_dict(layers[0].state_dict())
    ours = torch.nn.ModuleList([layers[1]])
    fuse_window_attention(ours)
    assert type(ours[0].w_msa) is FusedWindowMSA
    assert list(ours[0].state_dict()) == list(layers[0].state_dict())
    return layers[0].eval(), ours[0].eval()


def assert_near(found, expected, tolerance=1e-12):
    assert found.shape == expected.shape and torch.isfinite(found).all()
    torch.testing.assert_close(found, expected, rtol=0,
                               atol=tolerance * float(expected.detach().abs().max()))


@settings(max_examples=30, deadline=None)
@given(batch=st.integers(1, 3), height=st.integers(1, 13), width=st.integers(1, 13),
       shift=st.integers(0, 3), grad=st.booleans())
def test_equals_the_host_at_any_size(batch, height, width, shift, grad):
    host, ours = pair(shift, pad_small_map=True)
    x = torch.randn(batch, height * width, 12).double()
    with torch.set_grad_enabled(grad):
        expected = host(x, (height, width))
        assert_near(ours(x, (height, width)), expected)
        host.w_msa.relative_position_bias_table.data.zero_()
        if height * width > 1:  # else the comparison would not see the bias
            assert (host(x, (height, width)) - expected).abs().max() > 1e-2


def test_gradients_are_the_hosts():
    layers, x = pair(), torch.randn(2, 7 * 9, 12).double()
    gradients = []
    for layer in layers:
        layer.train()
        inputs = x.clone().requires_grad_()
        layer(inputs, (7, 9)).square().sum().backward()
        gradients.append([inputs.grad, *(p.grad for p in layer.parameters())])
    for expected, found in zip(*gradients):
        assert expected.any()
        assert_near(found, expected)


def test_dropout_of_the_weights_is_applied_in_training_only():
    _, ours = pair(attn_drop=0.5)
    x = torch.randn(1, 64, 12).double()
    assert torch.equal(ours(x, (8, 8)), ours(x, (8, 8)))
    ours.train()
    assert not torch.equal(ours(x, (8, 8)), ours(x, (8, 8)))


@pytest.mark.parametrize('size, message', [((3, 8), 'smaller than the window'),
                                           ((8, 9), "doesn't match")])
def test_refuses_what_the_host_refuses(size, message):
    _, ours = pair()
    with torch.no_grad(), pytest.raises(AssertionError, match=message):
        ours(torch.randn(1, 24 if size[0] == 3 else 64, 12).double(), size)


@pytest.mark.parametrize('state', ['dense', 'supernet', 'subnet'])
def test_every_state_of_the_backbone(state):
    size = 61, 83  # no multiple of a window

    def build(fused):
        torch.manual_seed(0)
        model = KCRSwinTransformer(**SWIN, pad_small_map=True, fused_attention=fused,
                                   gates=None if state == 'dense' else GATES)
        for parameter in model.parameters():
            parameter.data.normal_(0, 0.3)
        if state == 'subnet':
            model = slim(model, None, 1, (3, *size))[0]
        model.eval()
        return model

    host, ours = build(False), build(True)
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        with torch.autocast('cpu', torch.bfloat16):
            half = ours(x)
        host.double(), ours.double()
        x = x.double()
        pairs = [*zip(host(x), ours(x)), *zip(host(x[:1]), ours(x[:1]))]
    for expected, found in pairs:
        assert_near(found, expected)
    assert all(torch.isfinite(out).all() for out in half)
    assert list(host.state_dict()) == list(ours.state_dict())
    assert count_macs(host, (3, *size)) == count_macs(ours, (3, *size))


def test_attention_can_be_read():
    model = KCRSwinTransformer(**SWIN, fused_attention=True).double()
    model.eval()
    x = torch.randn(1, 3, 64, 64).double()
    with torch.no_grad():
        expected = model(x)
        with AttentionTap(model) as tap:
            found = model(x)
        assert torch.equal(model(x)[-1], expected[-1])
    assert_near(found[-1], expected[-1])
    assert len(tap.attention) == 4
    for attention in tap.attention.values():
        assert_near(attention.weights.sum(-1), torch.ones(attention.weights.shape[:-1]).double())
