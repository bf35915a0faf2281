"""Linear layers in one pass: the same function, whatever happened to the weights."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.cnn.bricks.transformer import FFN
from torch import nn

from mmkcr.compression.macs import count_forward_macs
from mmkcr.models.layers import SlicedLayerNorm
from mmkcr.models.layers.linear import OnePassLinear, use_one_pass


def layers(channels=24, hidden=40, **act):
    torch.manual_seed(0)
    ffn = FFN(channels, hidden, act_cfg=act or dict(type='GELU'))
    ffn.layers[1].bias = None
    return ffn.layers


def one_pass(plain):
    found = copy.deepcopy(plain)
    use_one_pass(found)
    return found


@pytest.mark.parametrize('act', [
    dict(type='GELU'), dict(type='GELU', approximate='tanh'), dict(type='Swish'),
    dict(type='SiLU'), dict(type='ReLU')], ids=lambda act: '-'.join(act.values()))
@pytest.mark.parametrize('lead', [(), (3, ), (2, 5), (2, 0)])
def test_equals_the_plain_layers_with_and_without_gradients(act, lead):
    plain = layers(**act)
    found = one_pass(plain)
    assert found[0][0].activation != 'none' and type(found[0][1]) is nn.Identity
    x = torch.randn(*lead, 48)[..., ::2]
    expected = plain.double()(x.double()).float()
    torch.testing.assert_close(found(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(found(x), expected)
        with torch.autocast('cpu', torch.bfloat16):
            torch.testing.assert_close(found(x).float(), expected, atol=.02, rtol=.02)


def test_keys_and_parameters_are_those_of_the_plain_layers():
    plain = layers()
    parameters = dict(plain.named_parameters())
    use_one_pass(plain)
    assert list(dict(plain.named_parameters())) == list(parameters)
    assert all(parameters[name] is value for name, value in plain.named_parameters())
    assert [type(m) for m in plain.modules() if isinstance(m, (nn.Linear, nn.GELU))] == [
        OnePassLinear] * 2


def written(module):
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.)


def loaded(module):
    module.load_state_dict({key: 2. * value for key, value in module.state_dict().items()})


def exchanged(module):
    module.weight = nn.Parameter(module.weight.detach() * 2.)


def swapped(module):
    module.weight.data.mul_(2.)  # unnoticed, as by an average of the weights,
    module.eval()  # but for the mode


@pytest.mark.parametrize('change', [written, loaded, exchanged, swapped])
@pytest.mark.parametrize('build', [
    lambda: one_pass(layers())[0][0],
    lambda: one_pass(layers(channels=512, hidden=513))[1],
    lambda: SlicedLayerNorm(nn.LayerNorm(24), torch.arange(0, 24, 2)),
], ids=['onednn', 'mkl', 'norm'])
def test_derived_weights_follow_the_parameters(build, change):
    found = build().eval()
    x = torch.randn(4, getattr(found, 'in_features', 24))
    with torch.no_grad():
        for _ in range(3):
            before = found(x)
        change(found)
        after = found(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, found(x))  # with gradients, from the parameters


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason='torch without MKL')
@settings(max_examples=30, deadline=None)
@given(tokens=st.lists(st.sampled_from([0, 1, 2, 17]), min_size=1, max_size=8),
       bias=st.booleans(), seed=st.integers(0, 99))
def test_large_layers_follow_the_number_of_tokens(tokens, bias, seed):
    torch.manual_seed(seed)
    plain = nn.Linear(520, 514, bias)
    found, operator = OnePassLinear(plain), torch.ops.mkl._mkl_linear
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        calls = []
        patch.setattr(torch.ops.mkl, '_mkl_linear',
                      lambda *args: calls.append(args[-1]) or operator(*args))
        for count in tokens:
            x = torch.randn(count, 2, 1040)[..., ::2].transpose(0, 1)
            torch.testing.assert_close(found(x), plain(x))
    assert calls == [2 * n for before, n in zip(tokens, tokens[1:]) if n and n == before]


@pytest.mark.parametrize('again', [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_start_without_packed_weights(again):
    found = one_pass(layers()).eval()
    x = torch.randn(4, 24)
    with torch.no_grad():
        expected = found(x)
        copied = again(found)
        torch.testing.assert_close(copied(x), expected)
        copied[1].weight.zero_()
        assert not copied(x).any()
        torch.testing.assert_close(found(x), expected)


@pytest.mark.parametrize('channels, hidden', [(24, 40), (512, 520)])
def test_counts_the_macs_of_the_plain_layers(channels, hidden):
    plain, x = layers(channels=channels, hidden=hidden), torch.randn(3, channels)
    found = one_pass(plain)
    for model in (plain, found, found, found):
        counted = count_forward_macs(model, lambda model=model: model(x)).total
        assert counted == 3 * channels * hidden * 2


def test_traces_and_compiles_to_ordinary_operators():
    found = one_pass(layers()).eval()
    x = torch.randn(4, 24)
    with torch.no_grad():
        expected = found(x)
        graph = torch.jit.trace(found, x)
        assert 'mkldnn' not in str(graph.inlined_graph)
        torch.testing.assert_close(graph(x), expected)
        compiled = torch.compile(found, fullgraph=True, backend='aot_eager')
        torch.testing.assert_close(compiled(x), expected)


def test_shows_its_activation():
    assert "activation='gelu'" in repr(OnePassLinear(nn.Linear(2, 3), nn.GELU()))
    assert 'activation' not in repr(OnePassLinear(nn.Linear(2, 3)))


def test_buffers_and_hooks_of_the_linear_layer_stay():
    linear = nn.Linear(4, 2)
    linear.register_buffer('kept', torch.arange(2))
    linear.register_forward_hook(lambda module, inputs, out: out.index_fill(-1, module.kept, 3.))
    found = OnePassLinear(linear)
    assert found.kept is linear.kept
    with torch.no_grad():
        assert (found(torch.randn(5, 4)) == 3.).all()
