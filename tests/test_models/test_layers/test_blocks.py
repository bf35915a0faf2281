"""Blocks in fewer passes: the same function, and nothing of the caller's is written to."""

import copy

import pytest
import torch
from mmpretrain.models.backbones.mobilenet_v2 import InvertedResidual
from mmpretrain.models.backbones.mobilevit import MobileVitBlock
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from torch import nn

from mmkcr.compression.macs import count_forward_macs
from mmkcr.models.layers.blocks import (
    InPlaceEncoderLayer,
    OnePassInvertedResidual,
    RowwiseMobileVitBlock,
    use_eager_blocks,
)
from mmkcr.models.layers.conv import use_one_pass_convs


@pytest.fixture
def blocks():
    """The host's block, and a copy of it that adds in place."""
    torch.manual_seed(0)
    block = TransformerEncoderLayer(16, 2, 32, drop_path_rate=.5, layer_scale_init_value=.5)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=.5)
    found = nn.Sequential(copy.deepcopy(block))
    use_eager_blocks(found)
    assert type(found[0]) is InPlaceEncoderLayer
    return block.eval(), found[0].eval()


@pytest.mark.parametrize('grad', [False, True])
@pytest.mark.parametrize('amp', [False, True])
def test_equals_the_hosts_block(blocks, grad, amp):
    x = torch.randn(3, 5, 16)
    given = x.clone()
    with torch.set_grad_enabled(grad), torch.autocast('cpu', torch.bfloat16, enabled=amp):
        expected, found = (block(x) for block in blocks)
    assert torch.equal(found, expected) and found.dtype == expected.dtype
    assert torch.equal(x, given)


def test_trains_as_the_hosts_block(blocks):
    x = torch.randn(3, 5, 16)
    found = []
    for block in blocks:
        torch.manual_seed(1)
        block.train()(x).square().sum().backward()
        found.append([p.grad for p in block.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_a_hook_keeps_what_attention_returns(blocks):
    x, kept = torch.randn(3, 5, 16), []
    for block in blocks:
        block.attn.register_forward_hook(lambda _, __, out: kept.append(out))
    with torch.no_grad():
        assert torch.equal(blocks[0](x), blocks[1](x))
    assert torch.equal(*kept)


def test_keys_and_parameters_are_those_of_the_hosts_block(blocks):
    plain, found = (dict(block.named_parameters()) for block in blocks)
    assert list(plain) == list(found)


def test_other_attention_is_left_alone():
    block = TransformerEncoderLayer(16, 2, 32)
    block.attn = nn.Identity()
    root = nn.Sequential(block)
    use_eager_blocks(root)
    assert root[0] is block


def convolved(block):
    """The host's block with statistics of its own, and a copy of it in fewer passes."""
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, .5, 2)
    found = nn.Sequential(copy.deepcopy(block))
    use_one_pass_convs(found)
    use_eager_blocks(found)
    return block.eval(), found[0].eval()


@pytest.mark.parametrize('fusion', [True, False])
@pytest.mark.parametrize('patch, size', [(2, (8, 6)), (2, (7, 5)), (3, (6, 7)), (1, (3, 2))])
@pytest.mark.parametrize('last', [True, False])
def test_a_mobilevit_block_equals_the_hosts(fusion, patch, size, last):
    torch.manual_seed(0)
    plain, found = convolved(MobileVitBlock(8, 12, 16, 8, patch_size=patch, num_heads=2,
                                            no_fusion=not fusion))
    assert type(found) is RowwiseMobileVitBlock
    assert type(found.global_rep[0]) is InPlaceEncoderLayer
    x = torch.randn(3, 8, *size)
    x = x.to(memory_format=torch.channels_last) if last else x
    given = x.clone()
    torch.testing.assert_close(found(x), plain(x))
    with torch.no_grad():
        torch.testing.assert_close(found(x), plain(x))
    assert torch.equal(x, given)
    assert list(plain.state_dict()) == list(found.state_dict())


@pytest.mark.parametrize('stride, channels', [(1, 8), (1, 12), (2, 8)])
@pytest.mark.parametrize('last', [True, False])
def test_an_inverted_residual_equals_the_hosts(stride, channels, last):
    torch.manual_seed(0)
    plain, found = convolved(InvertedResidual(8, channels, stride, 2,
                                              act_cfg=dict(type='Swish')))
    assert type(found) is OnePassInvertedResidual
    x = torch.randn(3, 8, 5, 6)
    x = x.to(memory_format=torch.channels_last) if last else x
    given, seen = x.clone(), []
    torch.testing.assert_close(found(x), plain(x))
    with torch.no_grad():
        expected = plain(x)
        torch.testing.assert_close(found(x), expected)
        macs = count_forward_macs(found, lambda: found(x)).total
        assert macs == count_forward_macs(plain, lambda: plain(x)).total
        found.conv[-1].register_forward_hook(lambda _, __, out: seen.append(out))
        torch.testing.assert_close(found(x), expected)
        torch.testing.assert_close(seen[0], plain.conv(x))  # not the sum
    assert torch.equal(x, given)
