"""Hidden units of MLPs with activations of any kind: the law, and where the mask acts."""

import copy

import pytest
import timm.models.metaformer
import torch
from timm.layers import Mlp
from torch import nn

from mmkcr.models import Searchable

GATES = dict(type='mmkcr.GumbelChannelGate', min_size=1)


class OwnSigmoid(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x)


class OwnSwish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class Shifted(nn.Module):
    """It learns by how much, from 0 on."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.relu(x) + self.shift


class OwnNested(nn.Sequential):
    def __init__(self):
        super().__init__(nn.ReLU(), OwnSigmoid())


@pytest.mark.parametrize('activation, before', [
    (nn.GELU, True), (nn.PReLU, True), (OwnSwish, True), (nn.Sigmoid, False), (OwnSigmoid, False),
    (OwnNested, False), (Shifted, False), (timm.models.metaformer.StarReLU, False)])
def test_the_law_holds_with_any_activation(activation, before):
    torch.manual_seed(0)
    host = nn.Sequential(Mlp(8, 12, act_layer=activation)).double().eval()
    kept, x = torch.arange(0, 12, 2), torch.randn(2, 5, 8).double()
    net = Searchable(copy.deepcopy(host), ['mlp_hidden'], GATES).eval()
    ((name, gate), ) = net.search_space.gates().items()
    gate.alpha.data.fill_(-1.)[kept] = 1.
    for parameter in host.parameters():  # as after a training: gates know it from the start
        nn.init.normal_(parameter)
    net.load_state_dict(host.state_dict(), strict=False)
    (point, ) = net.search_space.sites[name].mask_points()
    assert (point.module is net[0].fc1) == before
    space = Searchable(host, ['mlp_hidden']).search_space
    space.slice_to(space.structure_for({name: kept}))
    with torch.no_grad():
        torch.testing.assert_close(host(x), net(x))
