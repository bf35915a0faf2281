"""The price of a search in time, of a table that was measured."""

import math

import pytest
import torch

from mmkcr.apis import slim
from mmkcr.core import LatencyModel, LatencyTable, MacsModel
from mmkcr.models import KCRVisionTransformer
from mmkcr.models.losses.price import MacsPrice
from mmkcr.models.utils import task_forward

SHAPE = (3, 16, 16)
DENSE = 10_000_000


@pytest.fixture
def supernet():
    torch.manual_seed(0)
    arch = dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32)
    model = KCRVisionTransformer(arch=arch, img_size=16, patch_size=8, gates=dict(
        type='mmkcr.GumbelChannelGate', min_size=4))
    for gate in model.gates().values():
        torch.nn.init.normal_(gate.alpha)
    return model


@pytest.fixture
def table(supernet, tmp_path):
    """A file; a unit less saves a sixteenth of 3 ms."""
    classes = [dict(sites=list(supernet.gates()), total=16, measured=[4], changes={
        '4': -2_250_000})]
    path = tmp_path / 'table.json'
    LatencyTable({}, {}, DENSE, classes).save(path)
    return str(path)


def macs_of(supernet):
    space = supernet.search_space
    return MacsModel(supernet, space.host, space.gated_sites(), task_forward(supernet, SHAPE))


@pytest.mark.parametrize('target', [None, '7ms', '70%'])
def test_price_of_time(supernet, table, target):
    macs = macs_of(supernet)
    price = MacsPrice(0.5, 'latency', target, table=table)
    values = price(macs)
    sizes = {name: gate.expected_size() for name, gate in supernet.gates().items()}
    time = DENSE - sum(float(16 - size.detach()) for size in sizes.values()) * 3_000_000 / 16
    assert float(values['latency']) == pytest.approx(time / 1e6, rel=1e-5)
    values['loss_price'].backward()
    assert all((gate.alpha.grad != 0).any() for gate in supernet.gates().values())
    opened = float(values['latency_open']) * 1e6
    expected = math.log(time / DENSE) if target is None else abs(math.log(opened / 7e6))
    assert float(values['loss_price'].detach()) == pytest.approx(0.5 * expected, rel=1e-4)


def test_slimming_to_a_time(supernet, table):
    loaded = LatencyTable.load(table)
    subnet, structure = slim(supernet, '7ms', 1, SHAPE, latency=loaded)
    said = structure.provenance['latency']
    model = LatencyModel(macs_of(supernet), loaded)
    assert said['subnet'] == model(structure.sizes()) <= 7_000_000
    for name, size in structure.sizes().items():  # no site can have one unit more
        assert model({**structure.sizes(), name: size + 1}) > 7_000_000
    with pytest.raises(ValueError, match='reachable 5.5 ms to 10 ms, found 2 ms'):
        slim(supernet, '2ms', 1, SHAPE, latency=loaded)


def test_refusals(supernet, table, tmp_path):
    for arguments in (dict(cost='latency'), dict(cost='macs', table=table)):
        with pytest.raises(ValueError, match="a `table` with the `cost` 'latency'"):
            MacsPrice(**arguments)
    with pytest.raises(FileNotFoundError, match='a table of latencies'):
        MacsPrice(cost='latency', table=str(tmp_path / 'none.json'))
    with pytest.raises(ValueError, match='reachable 5.5 ms to 10 ms, found 1 ms'):
        MacsPrice(cost='latency', target='1ms', table=table)(macs_of(supernet))
