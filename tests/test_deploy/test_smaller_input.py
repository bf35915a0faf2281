"""Networks on smaller images: outputs of the usual size, and their own input size."""

import pytest
import torch
from torch import nn

from mmkcr.deploy.smaller_input import SmallerInput
from mmkcr.hosts import ensure_torchvision

ensure_torchvision()
timm = pytest.importorskip('timm')
SIDE = 64


def test_a_smaller_input_gives_maps_of_the_usual_size():
    network = nn.Sequential(nn.Conv2d(3, 4, 8, 8))
    small = SmallerInput(network, (16, 24), [(1, 4, 4, 6)])
    assert small(torch.rand(2, 3, 32, 48))[0].shape == (2, 4, 4, 6)
    tokens = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(2))
    with pytest.raises(ValueError, match="does not depend on the image's size"):
        SmallerInput(tokens, (16, 24), [(1, 4, 24)])(torch.rand(2, 3, 32, 48))


def test_a_network_of_one_size_inside_another_gets_the_smaller_one():
    """timm's refuse other sizes unless they are told."""
    model = timm.create_model('test_vit', pretrained=False, img_size=SIDE, num_classes=7).eval()
    small = SmallerInput(nn.Sequential(model), (32, 32), [(1, 7)])
    assert small(torch.rand(2, 3, SIDE, SIDE))[0].shape == (2, 7)
    assert model.patch_embed.img_size == (SIDE, SIDE)
