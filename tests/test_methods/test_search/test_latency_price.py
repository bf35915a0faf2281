"""The price of a search in time, of a table that was measured."""

import functools
import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from mmkcr.apis import slim
from mmkcr.core import LatencyModel, LatencyTable, MacsModel
from mmkcr.core.machine import this_machine
from mmkcr.methods.named import KCRVisionTransformer, OFBVisionTransformer
from mmkcr.methods.ofb.adaptive_one_hot import AdaptiveOneHotLoss
from mmkcr.methods.search.price import MacsPrice
from mmkcr.models.tasks import task_forward

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
    LatencyTable(this_machine(), {}, DENSE, classes).save(path)
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
    with pytest.raises(ValueError, match="`part` of a price .*, found 'backbon'"):
        MacsPrice(part='backbon')
    with pytest.raises(FileNotFoundError, match='a table of latencies'):
        MacsPrice(cost='latency', table=str(tmp_path / 'none.json'))
    with pytest.raises(ValueError, match='reachable 5.5 ms to 10 ms, found 1 ms'):
        MacsPrice(cost='latency', target='1ms', table=table)(macs_of(supernet))


@pytest.mark.parametrize('price', [MacsPrice, functools.partial(AdaptiveOneHotLoss, '70%')])
def test_a_table_of_another_machine_other_images_or_unfinished_is_refused(price, table):
    def rewritten(**changes):
        LatencyTable(**{**content, **changes}).save(table)
        return functools.partial(price, cost='latency', table=table)

    content = json.loads(Path(table).read_text())
    elsewhere = rewritten(machine=dict(hardware='another-64-cores', versions='torch3'))
    with pytest.raises(ValueError, match="a table about .*, found .*'another-64-cores'"
                       '.*`force_table=True`'):
        elsewhere()
    assert elsewhere(force_table=True).table.dense == DENSE
    for force in (False, True):
        of_large = rewritten(settings=dict(input_shape=[3, 224, 224]))
        assert of_large(input_shape=(3, 224, 224), force_table=force).table.dense == DENSE
        with pytest.raises(ValueError, match=r"about {'input_shape': \[3, 16, 16\]} in .*, found"):
            of_large(input_shape=SHAPE, force_table=force)
        unfinished = rewritten(classes=[dict(content['classes'][0], measured=[4, 8])])
        with pytest.raises(ValueError, match='a finished table in .*, found sizes that were not'):
            unfinished(force_table=force)


@pytest.fixture
def with_options(tmp_path):
    """A supernet of Once for Both and a table in which time is far from linear in the sizes."""
    torch.manual_seed(0)
    arch = dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32)
    model = OFBVisionTransformer(arch=arch, img_size=16, patch_size=8,
                                 gates=dict(type='mmkcr.BiMaskGate', start=0.25, step=0.25))
    for gate in model.gates().values():
        torch.nn.init.normal_(gate.alpha)
        gate.alive.view(-1)[1] = False
    classes = []
    for name, site in model.search_space.gated_sites().items():
        # a half saves nearly all, and all but a little takes longer than all
        changes = {site.total // 4: -2_000_000, site.total // 2: -1_900_000,
                   3 * site.total // 4: 500_000}
        classes.append(dict(sites=[name], total=site.total, measured=[*changes], changes={
            str(size): change for size, change in changes.items()}))
    LatencyTable(this_machine(), {}, DENSE, classes).save(tmp_path / 'table.json')
    return model, str(tmp_path / 'table.json')


def test_expected_time_is_the_mean_over_all_networks(with_options):
    model, table = with_options
    macs = macs_of(model)
    assert len(macs.sites) == 3  # the embedding lies along the products of both others
    loss = AdaptiveOneHotLoss('70%', cost='latency', table=table)
    time, mean, total = LatencyModel(macs, LatencyTable.load(table)), 0., 0.
    options = {name: [(size, float(p.detach())) for size, p in zip(
        gate.option_sizes().flatten().tolist(), gate.probabilities().flatten()) if p > 0]
        for name, gate in model.gates().items()}
    for chosen in itertools.product(*options.values()):
        chance = math.prod(p for _, p in chosen)
        mean += chance * time({name: size for name, (size, _) in zip(options, chosen)})
        total += chance
    assert total == pytest.approx(1, rel=1e-5)
    found = loss(macs)
    assert float(found['latency']) * 1e6 == pytest.approx(mean, rel=1e-5)
    # not the time at the mean sizes
    at_mean = time({name: float(gate.expected_size().detach())
                    for name, gate in model.gates().items()})
    assert abs(at_mean / mean - 1) > 0.02


@pytest.mark.parametrize('preset', ['balanced', 'reference', 'paper'])
@pytest.mark.parametrize('target', ['6ms', '95%'])
def test_the_budget_pulls_the_expected_time_to_its_target(preset, target, with_options):
    model, table = with_options
    macs = macs_of(model)
    loss = AdaptiveOneHotLoss(target, preset, cost='latency', table=table)
    aim = {'6ms': 6., '95%': 9.5}[target]
    optimizer = torch.optim.Adam([gate.alpha for gate in model.gates().values()], 0.1)
    distances = []
    for _ in range(120):
        found = loss(macs)
        distances.append(abs(float(found['latency']) - aim))
        optimizer.zero_grad()
        found['loss_budget'].backward()
        optimizer.step()
    assert distances[0] > 0.5 and distances[-1] < 0.1


def test_refusals_of_options(with_options):
    with pytest.raises(ValueError, match="a `table` with the `cost` 'latency'"):
        AdaptiveOneHotLoss(0.6, cost='latency')
    with pytest.raises(ValueError, match=r"'macs', 'params', 'bytes', 'latency'\], found 'paper'"):
        AdaptiveOneHotLoss(0.6, cost='paper')
