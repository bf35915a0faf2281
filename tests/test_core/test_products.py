"""Parameters and bytes as costs: exact for every family and kind, and budgets that are met."""

import copy
import math
import random
import re
from types import SimpleNamespace

import pytest
import torch

from lab.kind_coverage import FAMILIES, installed
from lab.model_zoo import random_units
from mmkcr.apis import compress, slim
from mmkcr.core import (
    BytesModel,
    CostModel,
    LatencyModel,
    MacsModel,
    ParamsModel,
    count_params,
    select_units,
)
from mmkcr.core.products import state_bytes
from mmkcr.methods.named import DWConvVisionTransformer, KCRVisionTransformer, OFBVisionTransformer
from mmkcr.methods.ofb.adaptive_one_hot import AdaptiveOneHotLoss
from mmkcr.methods.ofb.progressive_pruning import ProgressivePruningHook
from mmkcr.methods.search.price import MacsPrice
from mmkcr.models import Searchable
from mmkcr.models.counting import cost_model
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.sites import KINDS, why_not
from mmkcr.models.tasks import task_forward

SHAPE = (3, 16, 16)
VIT = dict(arch=dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32),
           img_size=16, patch_size=8)
COSTS = {'params': count_params, 'bytes': state_bytes}


def supernet(cls=KCRVisionTransformer, gate='mmkcr.GumbelChannelGate', **options):
    torch.manual_seed(0)
    model = cls(**VIT, gates=dict(type=gate, **options))
    for gate in model.gates().values():
        torch.nn.init.normal_(gate.alpha)
    return model


def macs_of(model):
    space = model.search_space
    return MacsModel(model, space.host, space.gated_sites(), task_forward(model, SHAPE))


@pytest.mark.parametrize('name', [name for name in FAMILIES if installed(name)])
def test_what_every_family_and_kind_has(name):
    """A row of weights forgotten or counted twice would show."""
    family, draw, generator = FAMILIES[name].build(), random.Random(name), torch.Generator()
    kinds = [kind for kind, cls in KINDS.items()
             if cls.gated and not cls.has_own_macs and not why_not(family, kind)]
    assert kinds
    for kind in kinds:
        host = copy.deepcopy(family)
        dense = {cost: count(host) for cost, count in COSTS.items()}
        space = SearchSpace(host, [kind])
        models = [cls(host, space.sites) for cls in (ParamsModel, BytesModel)]
        sizes = {name: site.rows * draw.randint(1, site.total // site.rows)
                 for name, site in space.sites.items()}
        space.slice_to(space.structure_for({
            name: random_units(space.sites[name], size, generator)
            for name, size in sizes.items()}))
        for model in models:
            count = COSTS[model.name]
            assert (model.dense, model(sizes)) == (dense[model.name], count(host)), kind


@pytest.mark.parametrize('operator', ['dwconv', 'conv', 'ensembled-dwconv', 'spvit'])
def test_operators_in_the_place_of_heads(operator):
    model = DWConvVisionTransformer(
        **VIT, num_registers=1, operator=operator, gates=dict(
            type='mmkcr.RelaxedTopKGate', count=2, blockwise=False))
    for kept in map(torch.tensor, ([0, 1], [1])):
        subnet = copy.deepcopy(model)
        models = [cls(model, model.search_space.gated_sites()) for cls in (ParamsModel, BytesModel)]
        structure = subnet.search_space.structure_for(dict.fromkeys(model.gates(), kept))
        subnet.search_space.slice_to(structure)
        dense = DWConvVisionTransformer(**VIT, num_registers=1)
        for cost in models:
            count = COSTS[cost.name]
            assert cost(structure.sizes()) == count(subnet) and cost.dense == count(dense)


@pytest.mark.parametrize('cost', COSTS)
def test_slimming_meets_the_target(cost):
    model = supernet(min_size=4)
    subnet, structure = slim(model, '90%', 1, SHAPE, cost=cost)
    said = structure.provenance[cost]
    assert said['subnet'] == COSTS[cost](subnet) <= 0.9 * said['dense']
    assert said['dense'] == COSTS[cost](KCRVisionTransformer(**VIT))
    count = cost_model(cost, macs_of(model))
    for name, size in structure.sizes().items():  # no site can have one unit more
        assert size == 16 or count({**structure.sizes(), name: size + 1}) > 0.9 * said['dense']
    unit, found = dict(params=('M parameters', '0.0002M'), bytes=('MB', '0.0002MB'))[cost]
    with pytest.raises(ValueError, match=rf'reachable 0.\d+M\w? to 0.\d+{unit}, found {found}'):
        slim(model, 200, 1, SHAPE, cost=cost)


@pytest.mark.parametrize('cost', COSTS)
def test_options_meet_the_target(cost):
    model = supernet(OFBVisionTransformer, 'mmkcr.BiMaskGate')
    AdaptiveOneHotLoss('70%', cost=cost)(macs_of(model))['loss_budget'].backward()
    assert any(gate.alpha.grad is not None for gate in model.gates().values())
    subnet, structure = slim(model, '70%', 1, SHAPE, cost=cost)
    said = structure.provenance[cost]
    assert 0.97 * 0.7 < said['subnet'] / said['dense'] <= 0.7
    assert said['subnet'] == COSTS[cost](subnet)


@pytest.mark.parametrize('cost', COSTS)
def test_compressing_meets_the_target_and_fills_it(cost):
    torch.manual_seed(0)
    dense = KCRVisionTransformer(**VIT)
    dense.eval()  # it returns nothing
    result = compress(dense, torch.randn(32, *SHAPE), '80%', ['mlp_hidden', 'head_channels'], SHAPE,
                      cost=cost, divisor=1)
    share = COSTS[cost](result.model) / COSTS[cost](dense)
    assert 0.97 * 0.8 < share <= 0.8
    assert result.structure.provenance[cost]['subnet'] == COSTS[cost](result.model)
    with pytest.raises(ValueError, match='within the reachable .*, found'):
        compress(dense, torch.randn(4, *SHAPE), 0.01, ['mlp_hidden'], SHAPE, cost=cost)


@pytest.mark.parametrize('cost', COSTS)
@pytest.mark.parametrize('target', [None, '90%'])
def test_the_price_of_a_search(cost, target):
    model = supernet()
    macs = macs_of(model)
    price = MacsPrice(0.5, cost, target)
    values = price(macs)
    expected = {name: float(gate.expected_size().detach()) for name, gate in model.gates().items()}
    count = cost_model(cost, macs)
    assert float(values[cost]) == pytest.approx(float(count({
        name: torch.tensor(size) for name, size in expected.items()})) / 1e6, rel=1e-5)
    values['loss_price'].backward()
    assert all((gate.alpha.grad != 0).any() for gate in model.gates().values())
    with pytest.raises(ValueError, match='a price `target` within the reachable .*M.* to .*M'):
        MacsPrice(0.5, cost, '1%')(macs)


#: By cost: texts and numbers with their meaning; what is refused, with its example.
TARGETS = {
    CostModel: ({'12.6G': 12_600_000_000, '450m': 450_000_000, 0.5: 500, '80%': 800, 1: 1000,
                 12345: 12345, 2e9: 2_000_000_000},
                ('', 'G', '-1', '0', '1.2X', None, 'nan', -0.5, '40MB'), 'MACs such as `12.6G`'),
    ParamsModel: ({'12M': 12_000_000, '60%': 600, 0.5: 500}, ('40MB', ), 'parameters such'),
    BytesModel: ({'40MB': 40_000_000, '1.5 kb': 1500, '2G': 2 * 10**9, '512B': 512, '60%': 600},
                 ('12ms', '-1MB'), 'bytes such as `12.6MB`'),
    LatencyModel: ({'12ms': 12_000_000, '1.5 ms': 1_500_000, '900us': 900_000, '80%': 800,
                    0.8: 800, 1: 1000, '0.002s': 2_000_000},
                   ('12G', '-1ms', 'fast', '0', '40MB'), 'time such as `12.6ms`')}


@pytest.mark.parametrize('model', TARGETS)
def test_targets(model):
    values, refused, example = TARGETS[model]
    assert {target: model.read_target(target, 1000) for target in values} == values
    for target in refused:
        with pytest.raises(ValueError, match=f'expected a target of {example}'):
            model.read_target(target, 1000)


def test_shares_without_their_sign_are_refused():
    for number in ('60', 60, 1.5, '100'):
        with pytest.raises(ValueError, match=rf'with a unit, found .*`60%`.* such as `{number}G`'):
            CostModel.read_target(number, 10**9)
    with pytest.raises(ValueError, match='of time with a unit, found 1200.* such as `1200ms`'):
        LatencyModel.read_target(1200, 10**9)


def test_other_costs_are_refused():
    with pytest.raises(ValueError, match=r"'params', 'bytes'\] or, with .*, found 'joule'"):
        slim(supernet(), '90%', 1, SHAPE, cost='joule')
    for build in (MacsPrice, AdaptiveOneHotLoss):
        with pytest.raises(ValueError, match="'params', 'bytes'.*found 'joule'"):
            build(target='80%', cost='joule')


@pytest.mark.parametrize('cost', COSTS)
def test_pruning_while_it_searches_keeps_to_the_cost(cost):
    """What the hook chooses at the end of a search of Once for Both is within its window."""
    network = supernet(OFBVisionTransformer, 'mmkcr.BiMaskGate')
    macs = macs_of(network)
    model = SimpleNamespace(price=AdaptiveOneHotLoss('70%', cost=cost), gates=network.gates,
                            macs_model=lambda: macs)
    chosen = ProgressivePruningHook()._choose(model)
    sizes = {site: network.gates()[site].option_sizes().flatten().tolist()[index]
             for site, index in chosen.items()}
    count = cost_model(cost, macs)
    assert 0.97 * 0.7 * count.dense < count(sizes) <= 0.7 * count.dense


def test_sizes_that_a_search_decided_on_are_not_cut():
    network = supernet()
    cost = cost_model('params', macs_of(network)).beside(dict.fromkeys(network.gates(), 16))
    with pytest.raises(ValueError, match=r'at least the 0.0\d+M of parameters that the search'):
        select_units({}, cost, 100)


def test_all_targets_of_options_and_free_sizes_together():
    """Fourteen at both ends were refused, which a middle size of the free sites cannot meet."""
    network = Searchable(dict(VIT, type='mmpretrain.VisionTransformer', arch=dict(
        embed_dims=32, num_layers=3, num_heads=4, feedforward_channels=64)),
        sites=['mlp_hidden', 'heads'], gates=dict(
            mlp_hidden=dict(type='mmkcr.BiMaskGate'), heads=dict(type='mmkcr.GumbelChannelGate')))
    macs, gates = macs_of(network), network.search_space.gates()
    lowest = macs({site: gate.min_size for site, gate in gates.items()}) / macs.dense
    assert lowest < 0.4
    totals = {site: gate.total for site, gate in gates.items()}
    # the window of options, and the free site's step
    head = macs.dense - macs({**totals, 'layers.0.attn.heads': 3})
    for percent in range(math.ceil(100 * lowest), 101):
        target = macs.dense * percent // 100
        kept = select_units(gates, macs, target)
        count = macs({site: len(units) for site, units in kept.items()})
        assert 0.97 * target - head < count <= target


def test_a_price_on_heads_whose_replacement_costs_more():
    """Full convolutions have more MACs than the attention of so few tokens."""
    model = Searchable(dict(VIT, type='mmpretrain.VisionTransformer'),
                       sites=[dict(kind='head_operator', operator='conv')],
                       gates=dict(type='mmkcr.GumbelChannelGate', min_size=1))
    macs = macs_of(model)
    most = macs(dict.fromkeys(model.search_space.sites, 1))
    assert most > macs.dense
    MacsPrice(0.5, 'macs', (most + macs.dense) // 2)(macs)['loss_price'].backward()
    with pytest.raises(ValueError) as error:
        MacsPrice(0.5, 'macs', '1%')(macs)
    low, high = re.search(r'reachable ([\d.e-]+)G to ([\d.e-]+)G', str(error.value)).groups()
    assert float(low) == pytest.approx(macs.dense / 1e9) and float(low) < float(high)
