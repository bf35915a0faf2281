"""Maps have the layout of the images: mmcv's operators read them as if channels were first."""

import pytest
import torch
from torch import nn

from mmkcr.apis import slim
from mmkcr.models import (
    DCSEfficientViT,
    DCSMobileViT,
    DWConvVisionTransformer,
    KCREfficientViT,
    KCRSwinTransformer,
    KCRVisionTransformer,
    OFBResNet,
    OFBVisionTransformer,
)

CHANNELS, OPTIONS = dict(type='mmkcr.GumbelChannelGate', min_size=2), dict(type='mmkcr.BiMaskGate')
VIT = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64),
           img_size=32, patch_size=8, out_type='featmap', out_indices=[0, 1])
SWIN = dict(arch=dict(embed_dims=16, depths=[1, 2], num_heads=[2, 2]), img_size=32, window_size=4,
            patch_size=4, out_indices=[0, 1])
EFFICIENT = dict(arch=dict(widths=[8, 8, 16, 32], depths=[1, 1, 1, 2], head_dim=8),
                 out_indices=(0, 1, 2))
MOBILE = dict(arch=[['mobilenetv2', 8, 1, 1, 2], ['mobilevit', 12, 2, 16, 24, 2, 2],
                    ['mobilevit', 16, 2, 24, 32, 1, 2]], stem_channels=8, out_indices=(0, 1, 2))
RESNET = dict(depth=50, num_stages=2, strides=(1, 2), dilations=(1, 1), base_channels=8,
              stem_channels=8, out_indices=(0, 1))
CASES = [
    (KCRVisionTransformer, VIT, CHANNELS),
    (KCRSwinTransformer, SWIN, CHANNELS),
    (KCREfficientViT, EFFICIENT, CHANNELS),
    (DCSEfficientViT, dict(EFFICIENT, local=True), CHANNELS),
    (DCSMobileViT, MOBILE, CHANNELS),
    (OFBVisionTransformer, VIT, OPTIONS),
    (OFBResNet, RESNET, OPTIONS),
    (DWConvVisionTransformer, VIT, CHANNELS),
]


@pytest.fixture(params=CASES, ids=lambda case: case[0].__name__)
def subnet(request):
    """A subnet for dense tasks, in eval mode, with the statistics of a batch."""
    cls, kwargs, gates = request.param
    torch.manual_seed(0)
    supernet = cls(**kwargs, gates=gates)
    for parameter in supernet.parameters():
        nn.init.normal_(parameter, std=.3)
    found, _ = slim(supernet, None, 1, (3, 32, 32))
    found.train(False)
    return found.double()


def maps(outs):
    found = [out for out in outs if out.ndim == 4]
    assert found
    return found


def test_channels_first_in_and_out(subnet):
    x = torch.randn(2, 3, 32, 32).double()
    with torch.no_grad():
        found = maps(subnet(x))
    for a, b in zip(found, maps(subnet(x)), strict=True):  # with gradients: the hosts' operators
        assert a.is_contiguous() and b.is_contiguous()
        torch.testing.assert_close(a, b, atol=1e-12 * float(b.detach().abs().max()), rtol=0)


def test_boxes_see_the_same_features(subnet):
    ops = pytest.importorskip('mmcv.ops')
    align = ops.RoIAlign(3, .25, 0)
    boxes = torch.tensor([[0, 2., 3., 20., 25.], [1, 8., 0., 30., 11.]]).double()
    x = torch.randn(2, 3, 32, 32).double()
    with torch.no_grad():
        found = [align(level, boxes) for level in maps(subnet(x))]
    for a, level in zip(found, maps(subnet(x)), strict=True):
        b = align(level.detach().contiguous(), boxes)
        torch.testing.assert_close(a, b, atol=1e-12 * float(b.abs().max()), rtol=0)


def test_values_do_not_depend_on_the_layout(subnet):
    x = torch.randn(2, 3, 32, 32).double()
    with torch.no_grad():
        first = maps(subnet(x))
        last = maps(subnet(x.to(memory_format=torch.channels_last)))
    for a, b in zip(first, last, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12 * float(b.abs().max()), rtol=0)
