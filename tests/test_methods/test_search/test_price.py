"""The price of a search in MACs: it rises with every alpha, whatever the temperature."""

import pytest
import torch

from mmkcr.core import MacsModel
from mmkcr.methods.named import KCRVisionTransformer
from mmkcr.methods.search.price import MacsPrice
from mmkcr.models.tasks import task_forward

SHAPE = (3, 16, 16)


@pytest.mark.parametrize('cost', ['macs', 'params', 'bytes'])
@pytest.mark.parametrize('temperature', [4.5, 0.3, 1.6e-4])
def test_the_cost_rises_in_every_alpha(temperature, cost):
    """From the first to the last temperature of the published schedule, gates closed or open."""
    torch.manual_seed(0)
    supernet = KCRVisionTransformer(
        arch=dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32), img_size=16,
        patch_size=8, gates=dict(type='mmkcr.GumbelChannelGate', min_size=4)).double()
    space = supernet.search_space
    macs = MacsModel(supernet, space.host, space.gated_sites(), task_forward(supernet, SHAPE))
    gates = list(supernet.gates().values())
    costs = []
    for alpha in torch.linspace(-6, 6, 13).tolist():
        for gate in gates:
            gate.temperature = temperature
            torch.nn.init.normal_(gate.alpha, mean=alpha, std=0.5, generator=torch.Generator()
                                  .manual_seed(0))
            gate.alpha.grad = None
        supernet.eval()
        loss = MacsPrice(1., cost)(macs)['loss_price']
        loss.backward()
        costs.append(loss.item())
        assert all((gate.alpha.grad > 0).all() for gate in gates), alpha
    assert costs == sorted(costs) and costs[-1] > costs[0]
