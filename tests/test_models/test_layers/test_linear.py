"""Linear layers in one pass: the same function, whatever happened to the weights."""

import copy
import pickle

import pytest
import torch
from mmcv.cnn.bricks.transformer import FFN
from torch import nn

from mmkcr.compression.macs import count_forward_macs
from mmkcr.models.layers.linear import OnePassLinear, use_one_pass


def layers(gelu='none'):
    torch.manual_seed(0)
    ffn = FFN(24, 40, act_cfg=dict(type='GELU', approximate=gelu))
    ffn.layers[1].bias = None
    return ffn.layers


def one_pass(plain):
    found = copy.deepcopy(plain)
    use_one_pass(found)
    return found


@pytest.mark.parametrize('gelu', ['none', 'tanh'])
@pytest.mark.parametrize('lead', [(), (3, ), (2, 5), (2, 0)])
def test_equals_the_plain_layers_with_and_without_gradients(gelu, lead):
    plain = layers(gelu)
    found = one_pass(plain)
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


def written(found):
    with torch.no_grad():
        found[0][0].weight.mul_(2.)


def loaded(found):
    state = {key: 2. * value for key, value in found.state_dict().items()}
    found.load_state_dict(state)


def exchanged(found):
    found[0][0].weight = nn.Parameter(found[0][0].weight.detach() * 2.)


def swapped(found):
    found[0][0].weight.data.mul_(2.)  # unnoticed, as by an average of the weights,
    found.eval()  # but for the mode


@pytest.mark.parametrize('change', [written, loaded, exchanged, swapped])
def test_packed_weights_follow_the_parameters(change):
    found = one_pass(layers()).eval()
    x = torch.randn(4, 24)
    with torch.no_grad():
        before = found(x)
        change(found)
        after = found(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, found(x))  # with gradients, from the parameters


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


def test_counts_the_macs_of_the_plain_layers():
    plain, x = layers(), torch.randn(3, 24)
    counts = [count_forward_macs(model, lambda model=model: model(x)).total
              for model in (plain, one_pass(plain))]
    assert counts == [3 * 24 * 40 * 2] * 2


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
    assert "gelu='none'" in repr(OnePassLinear(nn.Linear(2, 3), nn.GELU()))
    assert 'gelu' not in repr(OnePassLinear(nn.Linear(2, 3)))


def test_buffers_and_hooks_of_the_linear_layer_stay():
    linear = nn.Linear(4, 2)
    linear.register_buffer('kept', torch.arange(2))
    linear.register_forward_hook(lambda module, inputs, out: out.index_fill(-1, module.kept, 3.))
    found = OnePassLinear(linear)
    assert found.kept is linear.kept
    with torch.no_grad():
        assert (found(torch.randn(5, 4)) == 3.).all()
