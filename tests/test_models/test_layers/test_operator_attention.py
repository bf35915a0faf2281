"""Heads replaced by operators: every conversion that can be exact is, in fp64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mmpretrain.models.utils import MultiheadAttention
from torch import nn

from mmkcr.apis import count_macs
from mmkcr.core import SiteHolder, count_params
from mmkcr.methods.dwconv.top_k import RelaxedTopKGate
from mmkcr.methods.search.gumbel import GumbelChannelGate
from mmkcr.models.layers.head_operators import OPERATORS, border_sums, gaussian_taps
from mmkcr.models.layers.operator_attention import (
    MixedAttention,
    OperatorAttention,
    TokenGrid,
)
from mmkcr.models.sites import find_sites

D, H = 12, 3
NAMES = sorted(OPERATORS)


def dense(seed=0, bias=True, **kwargs):
    torch.manual_seed(seed)
    attn = MultiheadAttention(D, H, qkv_bias=bias, layer_scale_init_value=0.3, **kwargs)
    for parameter in attn.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attn.double().eval()


def convert(attn, kept, operator='dwconv', hw=(4, 5), extra=0):
    return OperatorAttention(copy.deepcopy(attn), kept, operator, TokenGrid(extra, hw)).eval()


def mixed(attn, gate, name, grid=None):
    """A supernet's layer with its gate, as a site of a backbone puts it there."""
    module = MixedAttention(attn, name, grid or TokenGrid()).to(attn.proj.weight.dtype)
    module.head_operator = SiteHolder(gate=gate)
    return module


def macs_of(attn, name, grid):
    """The closed form of a site on one layer."""
    host = nn.ModuleDict(dict(attn=attn))
    host.grid, host.num_extra_tokens, host.patch_embed = grid, grid.extra, nn.Identity()
    site = find_sites(host, [dict(kind='head_operator', operator=name)])['attn.head_operator']
    site.attach(GumbelChannelGate(H, min_size=1))
    return site.macs


def shake(module, seed=0):
    """The operator's own parameters at random."""
    generator = torch.Generator().manual_seed(seed)
    if module.operator is not None:
        for parameter in module.operator.parameters():
            parameter.data.normal_(0, 0.5, generator=generator)
    return module


def tokens(hw, extra=0, batch=2, seed=0):
    return torch.randn(batch, extra + hw[0] * hw[1], D, dtype=torch.float64,
                       generator=torch.Generator().manual_seed(seed))


def close(one, two):
    torch.testing.assert_close(one, two, rtol=0,
                               atol=1e-12 * max(1., float(two.detach().abs().max())))


def local_attention(kernel, hw):
    """The attention matrix (N, N) that is a 3 x 3 convolution with zero padding."""
    maps = torch.eye(hw[0] * hw[1]).to(kernel).reshape(-1, 1, *hw)
    return F.conv2d(maps, kernel.flip(0, 1)[None, None], padding=1).flatten(1)


@pytest.mark.parametrize('hw', [(4, 5), (1, 7), (3, 3)])
@pytest.mark.parametrize('bias', [True, False])
def test_attention_forced_to_a_local_kernel_is_the_depthwise_convolution(hw, bias):
    attn, kernels = dense(bias=bias), torch.randn(H, 3, 3).double()
    module, x = convert(attn, [], hw=hw), tokens(hw)
    module.operator.conv.weight.data.copy_(kernels.repeat_interleave(D // H, 0)[:, None])
    maps = torch.stack([local_attention(kernel, hw) for kernel in kernels])
    attn.scaled_dot_product_attention = lambda q, k, v, dropout_p: maps @ v
    close(module(x), attn(x))


@pytest.mark.parametrize('extra', [0, 2])
@settings(max_examples=10, deadline=None)
@given(kept=st.sets(st.integers(0, H - 1), max_size=H - 1), seed=st.integers(0, 99),
       bias=st.booleans(), hw=st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_full_convolution_equals_depthwise_when_its_kernels_factor(extra, kept, seed, bias, hw):
    attn, x = dense(seed, bias), tokens(hw, extra)
    full = shake(convert(attn, kept, 'conv', hw, extra), seed)
    depthwise = convert(attn, kept, 'dwconv', hw, extra)
    depthwise.operator.conv.weight.data.copy_(
        full.operator.taps.repeat_interleave(D // H, 0)[:, None])
    if extra:
        depthwise.operator.exchange.load_state_dict(full.operator.exchange.state_dict())
    close(full(x), depthwise(x))


@pytest.mark.parametrize('ensembled, single', [('ensembled-dwconv', 'dwconv'), ('spvit', 'conv')])
@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('head', range(H))
def test_ensemble_with_a_one_hot_head_is_that_head(ensembled, single, extra, head):
    """The head alone: the projection's columns of the others are zero."""
    attn = dense()
    mixed, one = (convert(attn, [], name, extra=extra) for name in (ensembled, single))
    one.proj.weight.data.unflatten(1, (H, -1))[:, [h for h in range(H) if h != head]] = 0.
    mixed.operator.logits.data.zero_()[head] = 1.
    taps = torch.randn(3, 3)
    if single == 'conv':
        mixed.operator.taps.data[:], one.operator.taps.data[:] = taps, taps
        one.operator.activate = torch.relu
    else:
        mixed.operator.conv.weight.data[:], one.operator.conv.weight.data[:] = taps, taps
    if extra:
        for exchange in (mixed.operator.exchange, one.operator.exchange):
            exchange.from_patches.data.fill_(0.7), exchange.to_patches.data.fill_(-0.4)
    x = tokens((4, 5), extra)
    close(mixed(x), one(x))


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('extra', [0, 3])
def test_scattered_without_a_kept_head_equals_blockwise_and_none_is_attention(name, extra):
    attn, x = dense(), tokens((4, 5), extra)
    blockwise = shake(convert(attn, [], name, extra=extra))
    gate = GumbelChannelGate(H, min_size=1)
    gated = mixed(copy.deepcopy(attn), gate, name, TokenGrid(extra, (4, 5))).eval()
    gated.operator.load_state_dict(blockwise.operator.state_dict())
    gate.selection = lambda: torch.tensor([]).long()
    close(gated(x), blockwise(x))
    close(convert(attn, range(H), name, extra=extra)(x), attn(x))


@pytest.mark.parametrize('name', NAMES)
@settings(max_examples=15, deadline=None)
@given(kept=st.sets(st.integers(0, H - 1)), seed=st.integers(0, 99), extra=st.integers(0, 2),
       hw=st.tuples(st.integers(1, 5), st.integers(1, 5)), bias=st.booleans())
def test_hard_gates_equal_the_static_module(name, kept, seed, extra, hw, bias):
    gate = RelaxedTopKGate(H, count=H - len(kept), blockwise=False)
    gate.alpha.data.copy_(torch.tensor([0. if h in kept else 1. for h in range(H)]))
    gated = shake(mixed(dense(seed, bias), gate, name, TokenGrid(extra, hw)), seed).eval()
    x = tokens(hw, extra, seed=seed)
    expected = gated(x)
    static = OperatorAttention(copy.deepcopy(gated), kept, name, gated.grid)
    close(static(x), expected)


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('blockwise', [True, False])
def test_soft_gates_give_finite_gradients_to_all(name, blockwise):
    gate = RelaxedTopKGate(H, count=1, blockwise=blockwise, temperature=0.5)
    other = RelaxedTopKGate(H, count=1, blockwise=blockwise)
    for one in (gate, other):
        one.join([gate, other])
        one.resample(torch.Generator().manual_seed(3))
    module = mixed(dense(), gate, name, TokenGrid(1, (4, 5))).train()
    module.operator.exchange.to_patches.data.fill_(0.1)
    module(tokens((4, 5), 1)).square().sum().backward()
    missing = [key for key, p in module.named_parameters() if p.grad is None or not p.grad.any()
               or not p.grad.isfinite().all()]
    assert not [key for key in missing if not (key == 'operator.logits' and H == 1)]


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('kept', [[], [1]])
@pytest.mark.parametrize('extra', [0, 1])
@pytest.mark.parametrize('bias', [True, False])
def test_fold_gives_plain_layers_with_the_same_outputs_once_and_twice(name, kept, extra, bias):
    module, x = shake(convert(dense(bias=bias), kept, name, extra=extra)), tokens((4, 5), extra)
    expected = module(x)
    once = copy.deepcopy(module).fold()
    close(once(x), expected)
    state = copy.deepcopy(once.state_dict())
    operator = once.operator
    assert once.fold() is once and once.operator is operator
    assert list(once.state_dict()) == list(state)
    assert all(torch.equal(value, state[key]) for key, value in once.state_dict().items())
    # nothing is derived any more: a forward pass reads parameters as they are
    assert not hasattr(operator, 'logits')
    left = H - len(kept)
    heads = 1 if name in ('spvit', 'ensembled-dwconv') else left
    assert once.proj.weight.shape == (D, (len(kept) + heads) * D // H)
    if 'conv' == name or name == 'spvit':
        assert operator.kernel.shape == (heads * D // H, D, 3, 3)
    # another map size, and every parameter learns
    grown = copy.deepcopy(once).train()
    grown.grid.hw = module.grid.hw = (2, 7)
    y = tokens((2, 7), extra)
    close(grown.eval()(y), module(y))
    grown.train()(y).square().sum().backward()
    assert all(p.grad is not None for p in grown.parameters())


@pytest.mark.parametrize('name', NAMES)
@pytest.mark.parametrize('extra', [0, 2])
def test_macs_of_the_static_module_are_the_closed_form(name, extra):
    for size in range(H + 1):
        closed_form = macs_of(dense(), name, TokenGrid(extra, (4, 5)))
        module = convert(dense(), range(size), name, extra=extra).fold()
        expected = closed_form(size, (1, 20 + extra, D))
        assert count_macs(Counted(module, 20 + extra), (3, 8, 8)) == expected
        assert float(closed_form(torch.tensor(float(size)), (1, 20 + extra, D))) == expected


class Counted(nn.Module):
    """Lets ``count_macs``, which feeds images, count a layer on tokens."""

    def __init__(self, layer, count):
        super().__init__()
        self.layer, self.count = layer, count

    def forward(self, images):
        return self.layer(images.new_zeros(1, self.count, self.layer.embed_dims))


# The paper's block profile: ViT-L, 576 tokens; its G are two per multiply-accumulate.
PROFILE = [('mhsa', 6.19, 4.2), ('conv', 12.08, 2.1), ('dwconv', 2.43, 2.11),
           ('spvit', 0.75, 2.1), ('ensembled-dwconv', 0.15, 2.1)]


@pytest.mark.parametrize('name, flops, params', PROFILE)
def test_profile_table_of_the_paper(name, flops, params):
    from lab.model_zoo import uninitialized
    with uninitialized():
        module = MultiheadAttention(1024, 16)
        if name != 'mhsa':
            module = OperatorAttention(module, [], name, TokenGrid(0, (24, 24)))
    macs = count_macs(Counted(module.eval(), 576), (3, 8, 8))
    assert round(2 * macs / 1e9, 2) == flops
    assert round(count_params(module) / 1e6, len(str(params).split('.')[1])) == params


def test_initialisation_is_a_normalised_gaussian():
    taps = gaussian_taps()
    assert float(taps.sum()) == pytest.approx(1.) and torch.equal(taps, taps.T)
    assert float(taps[1, 1] / taps[0, 1]) == pytest.approx(2.718281828**0.5, rel=1e-5)
    conv = convert(dense(), []).operator.conv
    assert torch.equal(conv.weight, taps.expand(D, 1, 3, 3)) and not conv.bias.any()
    ones = F.conv2d(torch.ones(1, 1, 2, 4), taps[None, None], padding=1)
    torch.testing.assert_close(border_sums(taps[None], (2, 4)), ones)


@pytest.mark.parametrize('name', NAMES)
def test_extra_tokens_exchange_with_the_patches(name):
    module = convert(dense(), [], name, extra=2)
    x = tokens((4, 5), 2)
    moved = x.clone()
    moved[:, 0] += 1.
    change = (module(moved) - module(x)).abs().amax((0, 2)) > 1e-6
    assert change.tolist() == [True] + 21 * [False]  # patches ignore it at the start
    moved = x.clone()
    moved[:, 7] += 1.
    change = (module(moved) - module(x)).abs().amax((0, 2)) > 1e-6
    assert change[:2].all()  # the mean of the patches reaches both
    module.operator.exchange.to_patches.data.fill_(0.5)
    moved = x.clone()
    moved[:, 1] += 1.
    change = (module(moved) - module(x)).abs().amax((0, 2)) > 1e-6
    assert not change[0] and change[1] and (name == 'spvit' or change[2:].all())


def test_operator_of_a_frozen_attention_learns_and_has_its_type():
    attn = dense().requires_grad_(False).bfloat16()
    module = convert(attn, [0])
    assert {name for name, p in module.named_parameters() if p.requires_grad} == {
        'operator.conv.weight', 'operator.conv.bias'}
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert module(tokens((4, 5)).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize('build, message', [
    (lambda: convert(dense(), [], 'dw'), "among .*'dwconv'.*, found 'dw'"),
    (lambda: convert(MixedAttention(dense(), 'conv', TokenGrid()), [], 'dwconv'), 'by `conv`'),
])
def test_refusals(build, message):
    with pytest.raises(ValueError, match=message):
        build()
