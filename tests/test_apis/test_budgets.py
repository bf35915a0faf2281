"""Many budgets in one file: each rung is `compress`, what is between takes blocks of both."""

import json

import pytest
import torch
from mmpretrain.models import SwinTransformer, VisionTransformer

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


@pytest.fixture(scope='module', params=[vit, swin])
def made(request, tmp_path_factory):
    """The network, what it was made into, and the file."""
    path = tmp_path_factory.mktemp('order') / 'order.json'
    result = compress_budgets(request.param(), IMAGES, TARGETS, **OPTIONS)
    result.order.save(path)
    return request.param, result, path


def network(made, target):
    build, result, path = made
    host = Searchable(build(), sites=result.order.backbone['sites'],
                      structure=dict(order=str(path), target_macs=target))
    host.load_state_dict(result.state)
    return host


def test_at_a_rung_it_is_what_compress_gives(made):
    """Bit for bit; one calibration has served all."""
    build, result, _ = made
    for found, target in zip(result.results, ['80%', '65%', '50%']):
        state = network(made, target).state_dict()
        expected = found.model.state_dict()
        assert set(state) == set(expected)
        assert all(torch.equal(state[name], value) for name, value in expected.items())
    alone = compress(build(), IMAGES, '50%', **OPTIONS).model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in alone.items())


def test_every_budget_is_met_and_of_any_two_networks_one_keeps_what_the_other_does(made):
    build, result, _ = made
    order, structures = result.order, []
    assert len(order.steps) > 1 + len(TARGETS)  # some are between
    for step in order.steps:
        structure = order.structure(step)
        structures.append({name: set(site.kept) for name, site in structure.sites.items()})
        assert order.choose(step.macs) == step
        assert order.choose(step.macs + 1).macs == step.macs
    for target in (0.93, 0.72, 0.55):
        model = network(made, target)
        assert count_macs(model, (3, 32, 32)) == model.search_space.structure.macs['subnet'] \
            <= target * order.macs['dense']
    for one in structures:
        for name, kept in one.items():
            assert all(kept <= other[name] or other[name] <= kept for other in structures)


def test_all_of_it_is_the_dense_network(made):
    build, result, _ = made
    state = network(made, '100%').state_dict()
    assert all(torch.equal(state[name], value) for name, value in build().state_dict().items())
    dense = Searchable(build(), sites=result.order.backbone['sites'])
    dense.load_state_dict(result.state)  # the file is one of the dense network, too


def test_between_two_rungs_it_is_nearer_than_units_of_the_larger_one_alone(made):
    """The larger rung's weights, with its last units left out until the budget is met."""
    build, result, _ = made
    order = result.order
    step = next(step for step in order.steps if len(set(step.rungs)) > 1 and 0 not in step.rungs)
    dense, mixed = build(), network(made, step.macs)
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


def test_a_network_that_is_not_chosen_from_the_file_does_not_load_it(made):
    build, result, _ = made
    host = Searchable(build(), sites=result.order.backbone['sites'],
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


def test_a_target_below_the_least_rung(made):
    with pytest.raises(ValueError, match='expected a target within the reachable'):
        made[1].order.choose('10%')


def test_budgets_that_are_alike():
    with pytest.raises(ValueError, match='expected budgets that differ'):
        compress_budgets(vit(), IMAGES, ['50%', 0.5], **OPTIONS)


@pytest.mark.parametrize('kind', ['head_operator', 'embedding'])
def test_kinds_that_have_one_budget(kind):
    with pytest.raises(ValueError, match='change nothing but their own block .* found `'):
        compress_budgets(vit(), IMAGES, ['90%'], [kind], **OPTIONS)
