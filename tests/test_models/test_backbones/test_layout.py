"""Maps have the layout of the images: mmcv's operators read them as if channels were first."""

import pytest
import torch

from .law import scene


@pytest.fixture(params=['vit-featmap', 'swin-dense-task', 'kcr-efficientvit-dense-task',
                        'efficientvit-dense-task', 'mobilevit-dense-task', 'ofb-vit-featmap',
                        'ofb-resnet', 'conv-patches'])
def subnet(request):
    """A subnet for dense tasks, in fp64."""
    return scene(request.param)[1]


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
