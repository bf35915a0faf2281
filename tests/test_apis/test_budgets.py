"""Many budgets in one file: each rung is `compress`, what is between takes blocks of both."""

import json
from typing import Callable, NamedTuple, Optional, Sequence

import pytest
import timm
import torch
from mmpretrain.models import SwinTransformer, VisionTransformer
from torch import nn

from lab.kind_coverage import randomise
from mmkcr.apis import compress, count_macs
from mmkcr.apis.budgets import compress_budgets
from mmkcr.core import Order
from mmkcr.core.order import steps_between
from mmkcr.models import Searchable

IMAGES = torch.randn(24, 3, 32, 32, generator=torch.Generator().manual_seed(0))
OPTIONS = dict(input_shape=(3, 32, 32), progress=False, divisor=4)
TARGETS = ['80%', '50%', '65%']


def vit():
    torch.manual_seed(0)
    model = VisionTransformer(
        arch=dict(embed_dims=32, num_layers=3, num_heads=4, feedforward_channels=128),
        img_size=32, patch_size=8, out_type='featmap')
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim == 2 else 0.1)
    model.eval()
    return model


def swin():
    torch.manual_seed(0)
    model = SwinTransformer(
        arch=dict(embed_dims=16, depths=[2, 2], num_heads=[2, 4]), img_size=32, window_size=4,
        patch_size=4, drop_path_rate=0., out_indices=(0, 1), pad_small_map=True)
    model.eval()
    return model


def eva(name='eva02_tiny_patch14_224'):
    """Positions turn pairs of channels, the neighbours of each other."""
    return randomise(timm.create_model(name, img_size=32, patch_size=8, embed_dim=32, depth=2,
                                       num_heads=4, num_classes=5))


def dinov3():
    """The same, pairs from both halves of a head."""
    return eva('vit_small_patch16_dinov3')


class Scores(nn.Module):
    """A backbone with a linear layer behind its last features."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.fc = backbone, nn.Linear(32, 5)
        nn.init.normal_(self.fc.weight, std=0.3, generator=torch.Generator().manual_seed(0))
        self.eval()

    def forward(self, images):
        return [self.fc(self.backbone(images)[-1].mean((2, 3)))]


class Case(NamedTuple):
    """A backbone, what it is a part of, and how it is compressed."""

    backbone: Callable
    sites: Optional[Sequence] = None
    targets: Sequence = TARGETS
    whole: Callable = lambda backbone: backbone

    def build(self):
        return self.whole(self.backbone())


SMALLER = ['80%', '60%']
CASES = dict(
    vit=Case(vit), swin=Case(swin),
    eva=Case(eva, None, SMALLER), dinov3=Case(dinov3, None, SMALLER),
    operators=Case(vit, ['head_operator', 'mlp_hidden'], SMALLER),
    # at the last target the stream is narrower, and the layer behind it is refitted
    turned=Case(vit, ['embedding', 'mlp_hidden'], ['80%', '35%'], Scores),
    streams=Case(swin, ['embedding', 'mlp_hidden'], SMALLER, Scores))


@pytest.fixture(scope='module', params=CASES)
def made(request, tmp_path_factory):
    """The case, what it was made into, and the file."""
    path, case = tmp_path_factory.mktemp('order') / 'order.json', CASES[request.param]
    result = compress_budgets(case.build(), IMAGES, case.targets, case.sites, **OPTIONS)
    result.order.save(path)
    return case, result, path


def network(made, target):
    case, result, path = made
    model = case.whole(Searchable(case.backbone(), sites=result.order.backbone['sites'],
                                  structure=dict(order=str(path), target_macs=target)))
    model.load_state_dict(result.state)
    model.eval()
    return model


def equal(found, expected):
    return set(found) == set(expected) and all(
        torch.equal(found[name], value) for name, value in expected.items())


def test_at_a_rung_it_is_what_compress_gives(made):
    """Bit for bit; one calibration has served all."""
    case, result, path = made
    for found, target in zip(result.results, sorted(case.targets, reverse=True)):
        assert equal(network(made, target).state_dict(), found.model.state_dict())
        step = Order.load(path).choose(target)
        assert equal(result.network(case.build(), step).state_dict(), found.model.state_dict())
    last = compress(case.build(), IMAGES, min(case.targets), case.sites, **OPTIONS)
    assert equal(last.model.state_dict(), result.results[-1].model.state_dict())


@pytest.mark.parametrize('made', ['turned'], indirect=True)
def test_a_backbone_that_was_counted_before_it_became_a_part(made):
    case, result, path = made
    target = min(case.targets)
    host = Searchable(case.backbone(), sites=result.order.backbone['sites'],
                      structure=dict(order=str(path), target_macs=target))
    count_macs(host, (3, 32, 32))
    assert any('./fc' in name for name in result.state)  # the layer behind is of the rung, too
    model = case.whole(host)
    model.load_state_dict(result.state)
    assert equal(model.state_dict(), network(made, target).state_dict())


def test_every_budget_is_met_and_of_any_two_networks_one_keeps_what_the_other_does(made):
    case, result, path = made
    order, structures = Order.load(path), []
    assert order == result.order
    for step in order.steps:
        structure = order.structure(step)
        structures.append({name: set(site.kept) for name, site in structure.sites.items()})
        assert order.choose(step.macs) == step
        assert order.choose(step.macs + 1).macs == step.macs
        if order.blocks.get('') and len(set(step.rungs)) > 1:  # all that share a stream
            assert all(len({order.rungs[rung][name] for rung in step.rungs}) == 1
                       for name in order.blocks[''])
    if '' not in order.blocks:
        assert len(order.steps) > 1 + len(case.targets)  # some are between
    for target in (0.93, 0.72):
        model = network(made, target)
        chosen = order.choose(target)
        assert count_macs(model, (3, 32, 32)) == chosen.macs <= target * order.macs['dense']
        found = result.network(case.build(), chosen)
        for one, other in zip(model(IMAGES[:2]), found(IMAGES[:2])):
            assert torch.equal(one, other)
    for one in structures:
        for name, kept in one.items():
            assert all(kept <= other[name] or other[name] <= kept for other in structures)


def test_all_of_it_is_the_dense_network(made):
    case, result, _ = made
    state = network(made, '100%').state_dict()
    assert all(torch.equal(state[name], value)
               for name, value in case.build().state_dict().items())
    dense = case.whole(Searchable(case.backbone(), sites=result.order.backbone['sites']))
    dense.load_state_dict(result.state)  # the file is one of the dense network, too


@pytest.mark.parametrize('made', ['vit', 'swin'], indirect=True)
def test_between_two_rungs_it_is_nearer_than_units_of_the_larger_one_alone(made):
    """The larger rung's weights, with its last units left out until the budget is met."""
    case, result, _ = made
    order = result.order
    step = next(step for step in order.steps if len(set(step.rungs)) > 1 and 0 not in step.rungs)
    dense, mixed = case.build(), network(made, step.macs)
    rung = min(step.rungs)
    larger = network(made, order.steps[[set(s.rungs) for s in order.steps].index({rung})].macs)
    sizes = {name: len(site.kept) for name, site in order.structure(step).sites.items()}
    before = {name: len(site.kept) for name, site in larger.search_space.structure.sites.items()}
    assert count_macs(mixed, (3, 32, 32)) < count_macs(larger, (3, 32, 32))
    for name, site in larger.search_space.sites.items():
        if sizes[name] < before[name]:
            kept = sorted(order.orders[name][:before[name]])
            left = [kept.index(unit) for unit in sorted(order.orders[name][:sizes[name]])]
            site.slice_units(torch.tensor(left))

    def error(model):
        with torch.no_grad():
            return sum(float((a - b).square().sum())
                       for a, b in zip(model(IMAGES), dense(IMAGES)))

    assert error(mixed) < error(larger)


@pytest.mark.parametrize('made', ['vit'], indirect=True)
def test_a_network_that_is_not_chosen_from_the_file_does_not_load_it(made):
    case, result, _ = made
    host = Searchable(case.build(), sites=result.order.backbone['sites'],
                      structure=result.order.structure(result.order.steps[-1]))
    with pytest.raises(ValueError, match=r'unexpected \(rungs\.1\.'):
        host.load_state_dict(result.state)


def test_steps_go_down_and_end_at_the_rungs():
    """The block that loses least for its MACs goes first; nothing between is within the target."""
    blocks = dict(a=['x'], b=['y'])
    losses = dict(x=[9., 4., 2., 1., 0.], y=[9., 1., .5, .1, 0.])
    steps = steps_between(blocks, [dict(x=4, y=4), dict(x=3, y=3), dict(x=2, y=1)], [80, 62, 31],
                          losses, lambda sizes: 10 * (sizes['x'] + sizes['y']))
    assert [(step.macs, step.rungs) for step in steps] == [
        (80, [0, 0]), (70, [0, 1]), (60, [1, 1]), (40, [1, 2]), (30, [2, 2])]


def test_between_streams_of_two_widths_there_is_nothing():
    blocks, losses = {'': ['w'], 'a': ['x'], 'b': ['y']}, dict.fromkeys('wxy', [9., 4., 2., 1., 0.])
    rungs = [dict(w=4, x=4, y=4), dict(w=3, x=3, y=4), dict(w=3, x=2, y=2)]
    steps = steps_between(blocks, rungs, [32, 21, 13], losses,
                          lambda sizes: sizes['w'] * (sizes['x'] + sizes['y']))
    assert [(step.macs, step.rungs) for step in steps] == [
        (32, [0, 0, 0]), (21, [1, 1, 1]), (18, [1, 2, 1]), (12, [2, 2, 2])]


@pytest.mark.parametrize('made', ['vit'], indirect=True)
@pytest.mark.parametrize('change, message', [
    (dict(format_version=2), 'expected order `format_version` 1, found 2 in'),
    (dict(steps=[]), 'there is no network in it'),
    (dict(rungs=[{'x': 1}]), 'a rung does not fit the sites'),
    (dict(steps=[[3, [0.5, 0, 0]]]), 'a step does not fit the blocks'),
    (dict(steps=[[3, [9, 9, 9]]]), 'a step does not fit the blocks'),
    (dict(blocks={}), 'the blocks do not have every site once'),
    (dict(orders={'x': [0, 0]}), 'the order of `x` is none of its units'),
    (dict(macs={}), 'expected an order file, found one that contradicts itself'),
])
def test_a_file_that_is_no_order_is_refused_in_one_sentence(made, change, message, tmp_path):
    path = tmp_path / 'order.json'
    path.write_text(json.dumps({**json.loads(made[2].read_text()), **change}))
    with pytest.raises(ValueError, match=message) as error:
        Order.load(path)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('structure, message', [
    (dict(order='none.json', target_macs='50%'), 'expected an order file at `none.json`'),
    (dict(order='none.json'), 'with the keys `order` and `target_macs`'),
])
def test_a_structure_that_names_no_network(structure, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Searchable(vit(), sites=['mlp_hidden'], structure=structure)


@pytest.mark.parametrize('made', ['vit'], indirect=True)
def test_a_target_below_the_least_rung(made):
    with pytest.raises(ValueError, match='expected a target within the reachable'):
        made[1].order.choose('10%')


def test_budgets_that_are_alike():
    with pytest.raises(ValueError, match='expected budgets that differ'):
        compress_budgets(vit(), IMAGES, ['50%', 0.5], **OPTIONS)


def test_blocks_that_share_weights_are_refused():
    model = vit()
    model.layers[1].ffn = model.layers[0].ffn
    with pytest.raises(ValueError, match='share no weights .* that `layers.0.ffn.mlp_hidden`'):
        compress_budgets(model, IMAGES, SMALLER, ['mlp_hidden'], **OPTIONS)


def test_the_networks_do_not_change_with_the_model():
    model = vit()
    found = compress_budgets(model, IMAGES, SMALLER, ['mlp_hidden'], **OPTIONS)
    before = {name: value.clone() for name, value in found.state.items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert equal(found.state, before)
