"""Convolution, norm and activation in one pass: the same function, whatever became of the parts."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmcv.cnn import ConvModule
from torch import nn

from mmkcr.compression.macs import count_forward_macs
from mmkcr.models.layers.conv import OnePassConv2d, OnePassConvModule, plus, use_one_pass_convs


def plain(norm=True, act='HSwish', groups=1, kernel=3, stride=1, seed=0):
    torch.manual_seed(seed)
    module = ConvModule(8, 12, kernel, stride, kernel // 2, groups=groups,
                        norm_cfg=dict(type='BN') if norm else None,
                        act_cfg=dict(type=act) if act else None)
    if norm:
        for value in (module.bn.weight, module.bn.bias, module.bn.running_mean):
            nn.init.normal_(value)
        nn.init.uniform_(module.bn.running_var, .5, 2)
    return module.eval()


def one_pass(module):
    found = nn.Sequential(copy.deepcopy(module))
    use_one_pass_convs(found)
    assert type(found[0]) is OnePassConvModule
    return found.eval()


@pytest.fixture
def calls(monkeypatch):
    """How often the operator of oneDNN was called."""
    found, operator = [], torch.ops.mkldnn._convolution_pointwise
    monkeypatch.setattr(torch.ops.mkldnn, '_convolution_pointwise',
                        lambda *args: found.append(1) or operator(*args))
    return found


@settings(max_examples=40, deadline=None)
@given(norm=st.booleans(), act=st.sampled_from(['HSwish', 'Swish', 'SiLU', 'ReLU', 'GELU', None]),
       groups=st.sampled_from([1, 4]), kernel=st.sampled_from([1, 3]),
       stride=st.sampled_from([1, 2]), batch=st.sampled_from([0, 1, 3]),
       last=st.booleans(), seed=st.integers(0, 99))
def test_equals_the_plain_module(norm, act, groups, kernel, stride, batch, last, seed):
    module = plain(norm, act, groups, kernel, stride, seed)
    found = one_pass(module)
    x = torch.randn(batch, 8, 7, 9)
    x = x.to(memory_format=torch.channels_last) if last else x
    expected = module.double()(x.double()).float()
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(found(x), expected)
        torch.testing.assert_close(found(x[..., 1:, 2:]),
                                   module(x[..., 1:, 2:].double()).float())  # another size
    torch.testing.assert_close(found(x), expected)


@settings(max_examples=40, deadline=None)
@given(norm=st.booleans(), act=st.sampled_from(['ReLU', None]), groups=st.sampled_from([1, 4]),
       batch=st.sampled_from([0, 1, 3]), last=st.booleans(), other=st.booleans(),
       double=st.booleans(), seed=st.integers(0, 99))
def test_a_sum_equals_that_with_the_plain_module(norm, act, groups, batch, last, other, double,
                                                 seed):
    module = plain(norm, act, groups, seed=seed)
    found = one_pass(module)[0]
    x, identity = torch.randn(batch, 8, 7, 9), torch.randn(batch, 12, 7, 9)
    x = x.to(memory_format=torch.channels_last) if last else x
    identity = identity.to(memory_format=torch.channels_last) if other else identity
    identity = identity.double() if double else identity
    given, expected = identity.clone(), identity + module(x)
    torch.testing.assert_close(plus(identity, found, x), expected)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(plus(identity, found, x), expected)
        torch.testing.assert_close(plus(identity, module, x), expected)
    assert torch.equal(identity, given)


def test_one_pass_in_eager_inference_of_fp32_alone(calls):
    found, x = one_pass(plain()), torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        found(x)
        assert len(calls) == 1
        assert not torch.equal(found[0](x, activate=False), found[0](x))
        assert len(calls) == 2  # without its activation it is the host's
        with torch.autocast('cpu', torch.bfloat16):
            found(x)
        found.train()(x)
        found.eval()[0].bn.train()
        found(x)
        found.eval()[0].bn.register_forward_hook(lambda *_: None)  # somebody looks at a part
        found(x)
        one_pass(plain()).double()(x.double())
        one_pass(plain(act='GELU'))(x)
    one_pass(plain())(x).sum().backward()
    assert len(calls) == 2


def written(found):
    with torch.no_grad():
        found[0].conv.weight.mul_(2.)


def loaded(found):
    found.load_state_dict({key: 2 * value for key, value in found.state_dict().items()})


def normed(found):
    found[0].bn.running_mean.add_(1.)


def trained(found):
    found.train()(torch.randn(4, 8, 6, 6))
    found.eval()


def swapped(found):
    found[0].conv.weight.data.mul_(2.)  # unnoticed, as by an average of the weights,
    found.eval()  # but for the mode


@pytest.mark.parametrize('change', [written, loaded, normed, trained, swapped])
def test_packed_weights_follow_the_parameters_and_statistics(change):
    found, x = one_pass(plain()), torch.randn(2, 8, 6, 6)
    with torch.no_grad():
        before = found(x)
        change(found)
        after = found(x)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, found(x))  # with gradients, from the parameters


@pytest.mark.parametrize('groups, kernel', [(1, 1), (1, 3), (4, 3)])
def test_macs_keys_copies_and_pickles(groups, kernel):
    module = plain(groups=groups, kernel=kernel, stride=2)
    found, x = one_pass(module), torch.randn(3, 8, 7, 7)
    assert [key[2:] for key in found.state_dict()] == list(module.state_dict())
    with torch.no_grad():
        expected = found(x)
        for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
            assert torch.equal(again(x), expected)
    macs = count_forward_macs(found, lambda: found(x)).total
    assert macs == 3 * 16 * 12 * 8 // groups * kernel**2
    assert macs == count_forward_macs(module, lambda: module(x)).total


# ---- convolutions on their own ----------------------------------------------------------------


def alone(**kwargs):
    """A convolution, and the same one with weights that are packed once."""
    torch.manual_seed(0)
    root = nn.Sequential(nn.Conv2d(8, 12, **kwargs))
    found = copy.deepcopy(root)
    use_one_pass_convs(found)
    assert type(found[0]) is OnePassConv2d
    return root[0], found[0]


@settings(max_examples=40, deadline=None)
@given(groups=st.sampled_from([1, 4]), kernel=st.sampled_from([1, 3]),
       stride=st.sampled_from([1, 2]), padding=st.sampled_from([0, 1, 'same']),
       dilation=st.sampled_from([1, 2]), bias=st.booleans(),
       mode=st.sampled_from(['zeros', 'reflect']), batch=st.sampled_from([0, 1, 3]),
       last=st.booleans())
def test_a_convolution_equals_the_plain_one(batch, last, **kwargs):
    kwargs['kernel_size'] = kwargs.pop('kernel')
    kwargs['padding_mode'] = kwargs.pop('mode')
    if kwargs['padding'] == 'same':
        kwargs['stride'] = 1
    module, found = alone(**kwargs)
    x = torch.randn(batch, 8, 7, 9)
    x = x.to(memory_format=torch.channels_last) if last else x
    torch.testing.assert_close(found(x), module(x))
    with torch.no_grad():
        for part in (x, x, x[..., 1:, 2:], *x[:1]):  # other sizes, and an image without a batch
            torch.testing.assert_close(found(part), module(part))


def test_a_convolution_packs_in_eager_inference_alone_and_follows_its_weight(calls):
    module, found = alone(kernel_size=3)
    x = torch.randn(2, 8, 6, 6)
    found(x).sum().backward()
    assert not calls and found.weight.grad.any()
    with torch.no_grad():
        before = found(x)
        found.weight.mul_(2.)
        after = found(x)
        found.weight.data.mul_(2.)
        found.eval()
        assert not torch.allclose(after, found(x)) and not torch.allclose(before, after)
        assert len(calls) == 3
        torch.testing.assert_close(copy.deepcopy(found)(x), found(x))
        torch.testing.assert_close(found(x), nn.functional.conv2d(x, found.weight, found.bias))
        macs = count_forward_macs(found, lambda: found(x)).total
    assert macs == count_forward_macs(module, lambda: module(x)).total == 2 * 16 * 12 * 8 * 9


def test_the_convolution_in_a_module_of_convolution_and_norm_is_left_to_it():
    module = nn.Sequential(plain(act='GELU'))
    use_one_pass_convs(module)
    assert type(module[0]) is OnePassConvModule and type(module[0].conv) is nn.Conv2d


@pytest.mark.parametrize('change', [written, loaded, normed, trained, swapped])
def test_products_of_channels_first_maps_follow_the_parameters_too(change, calls):
    found, x = one_pass(plain(act=None, kernel=1)), torch.randn(2, 8, 6, 6)
    last = x.to(memory_format=torch.channels_last)
    with torch.no_grad():
        before = found(x)
        assert not calls and before.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found(last), before)
        assert len(calls) == 1  # nothing to turn around: oneDNN
        change(found)
        after = found(x)
        torch.testing.assert_close(found(last), after)
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, found(x))  # with gradients, from the parameters
