"""Gated and sliced MLP: one function in three forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.cnn.bricks.transformer import FFN
from mmpretrain.models.utils import SwiGLUFFN
from torch import nn

from mmkcr.models.gates import GumbelChannelGate
from mmkcr.models.layers import GatedFFN, SlicedFFN, SlicedLayerNorm

D = 16


def dense(seed=0, drop_path=0., scale=0.5):
    torch.manual_seed(seed)
    ffn = FFN(D, 24, act_cfg=dict(type='GELU'), layer_scale_init_value=scale,
              dropout_layer=dict(type='DropPath', drop_prob=drop_path))
    norm = nn.LayerNorm(D, eps=1e-6)
    for parameter in (*ffn.parameters(), *norm.parameters()):
        nn.init.normal_(parameter, std=0.5)
    return norm, ffn


def sliced(kept, **kwargs):
    norm, ffn = dense(**kwargs)
    return SlicedLayerNorm(norm, kept), SlicedFFN(ffn, kept)


def gated(kept, **kwargs):
    norm, ffn = dense(**kwargs)
    gate = GumbelChannelGate(D, min_size=1)
    gate.alpha.data.fill_(-1.)[kept] = 1.
    return norm, GatedFFN(ffn, gate).eval()


subsets = st.sets(st.integers(0, D - 1), min_size=1).map(sorted).map(torch.tensor)


@settings(max_examples=20, deadline=None)
@given(kept=subsets, lead=st.lists(st.integers(1, 3), max_size=3), grad=st.booleans())
def test_sliced_equals_gated_for_any_channels_and_shape(kept, lead, grad):
    (norm, ffn), (sliced_norm, sliced_ffn) = gated(kept), sliced(kept)
    x = torch.randn(*lead, D)
    expected = ffn(norm(x), identity=x)
    with torch.set_grad_enabled(grad):
        found = sliced_ffn(sliced_norm(x), identity=x.clone())
    scale = float(expected.detach().abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize('kept', [torch.tensor([5]), torch.tensor([0, 1, 6, 15])])
def test_every_form_of_the_norm_and_the_sum_agrees(kept):
    """Eager on a CPU, for a compiler, and for an exporter."""
    norm, ffn = sliced(kept)
    x = torch.randn(2, 3, D)
    expected = ffn(norm(x), identity=x)

    def run(x):
        return ffn(norm(x), identity=x)

    for backend in ('eager', 'aot_eager'):
        torch._dynamo.reset()
        compiled = torch.compile(run, fullgraph=True, backend=backend)
        torch.testing.assert_close(compiled(x), expected)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x.clone()), expected)
    program = torch.export.export(_Block(norm, ffn).eval(), (x, ))
    torch.testing.assert_close(program.module()(x), expected)


class _Block(nn.Module):

    def __init__(self, norm, ffn):
        super().__init__()
        self.norm, self.ffn = norm, ffn

    def forward(self, x):
        return self.ffn(self.norm(x), identity=x)


def test_gradients_are_those_of_the_gated_form():
    kept = torch.tensor([0, 3, 4, 9, 15])
    x = torch.randn(2, 5, D)
    gradients = []
    for norm, ffn in (gated(kept), sliced(kept)):
        inputs = x.clone().requires_grad_()
        ffn(norm(inputs), identity=inputs).square().sum().backward()
        gradients.append((inputs.grad, norm.weight.grad, ffn.layers[0][0].weight.grad,
                          ffn.layers[1].bias.grad, ffn.gamma2.weight.grad))
    full, part = gradients
    torch.testing.assert_close(part[0], full[0])
    torch.testing.assert_close(part[1], full[1][kept])
    torch.testing.assert_close(part[2], full[2][:, kept])
    torch.testing.assert_close(part[3], full[3][kept])
    torch.testing.assert_close(part[4], full[4][kept])


def test_with_gradients_the_identity_is_left_alone():
    norm, ffn = sliced(torch.arange(4))
    x = torch.randn(2, D)
    before = x.clone()
    ffn(norm(x), identity=x)
    assert torch.equal(x, before)


def test_a_site_that_keeps_everything_is_the_dense_layer():
    norm, ffn = dense()
    x = torch.randn(2, 3, D)
    expected = ffn(norm(x), identity=x)
    sliced_norm, sliced_ffn = sliced(torch.arange(D))
    with torch.no_grad():
        torch.testing.assert_close(sliced_ffn(sliced_norm(x), identity=x.clone()), expected)


def test_drop_path_drops_the_branch_of_a_sample():
    norm, ffn = sliced(torch.arange(0, D, 2), drop_path=0.5)
    norm.train(), ffn.train()
    x = torch.randn(64, 3, D)
    out = ffn(norm(x), identity=x)
    dropped = (out == x).flatten(1).all(1)
    assert 10 < int(dropped.sum()) < 54
    assert torch.equal(out[:, :, 1::2], x[:, :, 1::2])


def test_checkpointing_changes_no_gradient():
    from torch.utils.checkpoint import checkpoint
    norm, ffn = sliced(torch.tensor([1, 2, 7]))
    x = torch.randn(2, 4, D, requires_grad=True)
    plain = torch.autograd.grad(ffn(norm(x), identity=x).square().sum(), x)[0]
    again = checkpoint(lambda x: ffn(norm(x), identity=x), x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.square().sum(), x)[0], plain)


@pytest.mark.parametrize('cache', [True, False])
def test_autocast_stays_near_full_precision(cache):
    norm, ffn = sliced(torch.tensor([1, 2, 7, 8]))
    x = torch.randn(2, 4, D)
    expected = ffn(norm(x), identity=x.clone())
    with torch.autocast('cpu', torch.bfloat16, cache_enabled=cache):
        found = ffn(norm(x), identity=x.clone())
    assert found.dtype == x.dtype
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_half_precision_weights_keep_their_type():
    norm, ffn = (module.bfloat16() for module in sliced(torch.tensor([1, 2, 7, 8])))
    x = torch.randn(2, 4, D).bfloat16()
    assert ffn(norm(x), identity=x).dtype == torch.bfloat16


def test_keys_are_those_of_the_dense_modules_plus_the_channels():
    kept = torch.arange(5)
    (norm, ffn), (sliced_norm, sliced_ffn) = dense(), sliced(kept)
    assert list(sliced_norm.state_dict()) == list(norm.state_dict())
    assert sorted(sliced_ffn.state_dict()) == sorted([*ffn.state_dict(), 'kept'])
    assert sorted(gated(kept)[1].state_dict()) == sorted([*ffn.state_dict(), 'gate.alpha'])


@pytest.mark.parametrize('affine, bias', [(False, False), (True, False)])
def test_norms_without_parameters(affine, bias):
    norm = nn.LayerNorm(D, elementwise_affine=affine, bias=bias)
    kept = torch.tensor([2, 5])
    x = torch.randn(3, D)
    torch.testing.assert_close(SlicedLayerNorm(norm, kept)(x), nn.functional.layer_norm(
        x, (D, ))[:, kept])


@pytest.mark.parametrize('build, message', [
    (lambda: SlicedFFN(SwiGLUFFN(D), torch.arange(2)), 'expected an mmcv `FFN`.*`SwiGLUFFN`'),
    (lambda: SlicedFFN(FFN(D, 8, add_identity=False), torch.arange(2)), 'with identity'),
    (lambda: GatedFFN(nn.Linear(D, D), GumbelChannelGate(D)), '`Linear`'),
    (lambda: SlicedLayerNorm(nn.BatchNorm1d(D), torch.arange(2)),
     'expected a `LayerNorm`.*`BatchNorm1d`'),
])
def test_refuses_other_modules(build, message):
    with pytest.raises(TypeError, match=message):
        build()
