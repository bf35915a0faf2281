"""Blocks that add in place: the same function, and nothing of the caller's is written to."""

import copy

import pytest
import torch
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from torch import nn

from mmkcr.models.layers.residual import InPlaceEncoderLayer, use_in_place_sums


@pytest.fixture
def blocks():
    """The host's block, and a copy of it that adds in place."""
    torch.manual_seed(0)
    block = TransformerEncoderLayer(16, 2, 32, drop_path_rate=.5, layer_scale_init_value=.5)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=.5)
    found = nn.Sequential(copy.deepcopy(block))
    use_in_place_sums(found)
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
    use_in_place_sums(root)
    assert root[0] is block
