"""Attention layers for any number of heads compute what their hosts' layers do."""

import copy

import pytest
import torch
from mmpretrain.models.backbones.twins import LocallyGroupedSelfAttention
from timm.layers import AttentionRope
from timm.models.eva import EvaAttention

from mmkcr.models.adapters.attentions import eva_attention, timm_attention
from mmkcr.models.layers.mmpretrain_attention import SizedGroupedAttention
from mmkcr.models.layers.take_over import take_over


@pytest.mark.parametrize('size', [(14, 14), (14, 9), (9, 14), (5, 7), (9, 5)], ids=str)
def test_grouped_attention_is_the_hosts_where_windows_do_not_fit(size):
    """The host masks its padding only where both sides have some."""
    host = LocallyGroupedSelfAttention(16, 4, qkv_bias=True, window_size=7).double().eval()
    for parameter in host.parameters():
        parameter.data.normal_()
    ours = take_over(SizedGroupedAttention, copy.deepcopy(host))
    tokens = torch.randn(2, size[0] * size[1], 16, dtype=torch.float64)
    torch.testing.assert_close(ours(tokens, size), host(tokens, size), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('cls, adapter', [(EvaAttention, eva_attention),
                                          (AttentionRope, timm_attention)])
def test_rotary_attention_is_the_hosts_where_it_is_causal(cls, adapter):
    host = cls(16, 4, scale_norm=False).double().eval()
    ours = adapter(host)['rotary'].opened(copy.deepcopy(host))
    tokens, rope = (torch.randn(*size, dtype=torch.float64) for size in ((2, 9, 16), (8, 8)))
    for causal in (False, True):
        torch.testing.assert_close(ours(tokens, rope=rope, is_causal=causal),
                                   host(tokens, rope=rope, is_causal=causal))
