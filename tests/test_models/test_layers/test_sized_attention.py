"""Attention layers for any number of heads compute what their hosts' layers do."""

import copy

import pytest
import torch
from mmpretrain.models.backbones.twins import LocallyGroupedSelfAttention

from mmkcr.models.layers.sized_attention import SizedGroupedAttention
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
