"""ONNX and latency of slim MobileViT and EfficientViT."""

import copy

import pytest
import torch

from mmkcr.apis import slim
from mmkcr.deploy.export import export_onnx
from mmkcr.deploy.latency import measure_pair
from mmkcr.deploy.layers import traceable
from mmkcr.models import DCSEfficientViT, DCSMobileViT, KCREfficientViT

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=2)
MOBILE = dict(arch=[['mobilenetv2', 8, 1, 1, 2], ['mobilevit', 12, 2, 16, 24, 2, 2]],
              stem_channels=8, out_indices=(0, 1))
EFFICIENT = dict(arch=dict(widths=[8, 16, 32], depths=[1, 1, 1], head_dim=8), out_indices=(0, 1))
NETS = [pytest.param(DCSMobileViT, MOBILE, id='mobilevit'),
        pytest.param(DCSEfficientViT, dict(EFFICIENT, local=True), id='efficientvit'),
        pytest.param(KCREfficientViT, EFFICIENT, id='kcr-efficientvit')]


def pair(cls, kwargs, size=48):
    """The dense network and a subnet of random gates."""
    torch.manual_seed(0)
    supernet = cls(**kwargs, gates=GATES)
    for name, parameter in supernet.named_parameters():
        if name.endswith(('alpha', 'mask.bias')):
            torch.nn.init.normal_(parameter)
    dense = cls(**kwargs)
    dense.train(False)
    return dense, slim(supernet, None, 1, (3, size, size))[0]


@pytest.mark.parametrize('cls, kwargs', NETS)
def test_onnx_at_sizes_that_were_not_traced(cls, kwargs, tmp_path):
    _, subnet = pair(cls, kwargs)
    report = export_onnx(subnet, tmp_path / 'slim.onnx', (3, 48, 48))
    assert report.dynamic_size, report.notice
    assert len({shape[2:] for shape in report.errors}) == 3
    assert max(report.errors.values()) <= 1e-4


@pytest.mark.parametrize('size', [(32, 48), (33, 50)])
def test_traceable_block_is_that_of_the_host(size):
    dense, _ = pair(DCSMobileViT, MOBILE)
    x = torch.randn(2, 3, *size)
    with torch.no_grad():
        expected = dense(x)
        found = traceable(copy.deepcopy(dense))(x)
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize('cls, kwargs', NETS)
def test_latency_pair(cls, kwargs):
    timing = measure_pair(*pair(cls, kwargs), torch.randn(1, 3, 48, 48), repeats=2, warmup=1)
    assert len(timing.ratios) == 2 and min(timing.ratios) > 0
    assert timing.macs_slim != timing.macs_dense
