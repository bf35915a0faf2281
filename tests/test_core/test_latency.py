"""Time as a function of sizes: exact at what was measured, differentiable."""

import itertools
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.closed_form.profiles import share_budget
from mmkcr.core import (
    LatencyModel,
    LatencyTable,
    MacsModel,
    choose_options,
    solve_budget,
)
from mmkcr.core.latency import interpolate
from mmkcr.methods.named import KCRVisionTransformer
from mmkcr.models.search_space import SearchSpace
from mmkcr.models.tasks import task_forward

SHAPE = (3, 16, 16)
DENSE = 10_000_000


def macs_model(kinds=('mlp_hidden', ), width=16, hidden=32, layers=2):
    arch = dict(embed_dims=width, num_layers=layers, num_heads=2, feedforward_channels=hidden)
    model = KCRVisionTransformer(arch=arch, img_size=16, patch_size=8)
    space = SearchSpace(model, list(kinds))
    return MacsModel(model, space.host, space.sites, task_forward(model, SHAPE))


def table_of(macs, changes=None, **settings):
    """A table of every site alone, with some changes at sizes 8, 16 and all but one unit."""
    changes = changes or {'8': -900_000, '16': -500_000, '31': 100_000}
    classes = [dict(sites=[name], total=site.total, measured=[], changes={
        size: change for size, change in changes.items() if int(size) < site.total})
        for name, site in macs.sites.items()]
    return LatencyTable(dict(hardware='h', versions='v'), dict(settings), DENSE, classes)


MACS = macs_model()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(-99, 99)), min_size=2, max_size=6,
                unique_by=lambda point: point[0]), st.floats(0, 110))
def test_interpolation_is_linear_between_points(points, size):
    sizes, values = zip(*sorted(points))
    for known, value in zip(sizes, values):
        assert interpolate(sizes, values, known) == pytest.approx(value)
    found = interpolate(sizes, values, size)
    place = sum(known < size for known in sizes)
    if 0 < place < len(sizes):
        assert min(values[place - 1:place + 1]) - 1e-6 <= found <= max(
            values[place - 1:place + 1]) + 1e-6
    tensor = torch.tensor(size, dtype=torch.float64, requires_grad=True)
    assert float(interpolate(sizes, values, tensor).detach()) == pytest.approx(found)


def test_exact_where_it_was_measured_and_differentiable():
    model = LatencyModel(MACS, table_of(MACS))
    first, second = MACS.sites
    assert model.dense == model({first: 32, second: 32}) == DENSE
    assert model({first: 8, second: 32}) == DENSE - 900_000
    assert model({first: 8, second: 16}) == DENSE - 1_400_000
    assert model({first: 12, second: 32}) == DENSE - 700_000
    # the whole is never negative
    fast = LatencyModel(MACS, table_of(MACS, {'8': -9_000_000}))
    assert fast(dict.fromkeys(MACS.sites, 1)) == 1
    sizes = {name: torch.tensor(20., requires_grad=True) for name in MACS.sites}
    model(sizes).backward()
    assert all(size.grad == pytest.approx(600_000 / 15) for size in sizes.values())


def test_sites_of_one_product_do_not_save_the_same_twice():
    """An MLP of hidden units a and channels b: MACs a b, so b saves a times what it saves alone."""
    macs = macs_model(['mlp_hidden', 'mlp_channels'])
    table = LatencyTable({}, {}, DENSE, [dict(sites=[name], total=site.total, measured=[], changes={
        str(site.total // 2): -1_000_000}) for name, site in macs.sites.items()])
    model = LatencyModel(macs, table)
    half = {name: site.total // 2 if name.startswith('layers.0') else site.total
            for name, site in macs.sites.items()}
    assert model(half) == DENSE - 1_500_000  # a half, and half of a half
    tensors = {name: torch.tensor(float(size), requires_grad=True) for name, size in half.items()}
    assert float(model(tensors).detach()) == pytest.approx(DENSE - 1_500_000)


def test_what_is_out_of_reach_gives_the_range():
    model = LatencyModel(MACS, table_of(MACS))
    least = dict.fromkeys(MACS.sites, 8)
    model.check_target(DENSE, least)
    for target, found in ((1_000_000, '1 ms'), (2 * DENSE, '20 ms')):
        with pytest.raises(ValueError, match=f'reachable 8.2 ms to 10 ms, found {found}'):
            model.check_target(target, least)


def test_sites_that_the_table_lacks_are_refused():
    table = table_of(MACS)
    table.classes.pop()
    with pytest.raises(ValueError, match='of 32 units in the table of latencies, found 0 units: '
                       'measure one with `--sites mlp_hidden`'):
        LatencyModel(MACS, table)
    table = table_of(MACS)
    table.classes[0]['total'] = 48
    with pytest.raises(ValueError, match='found 48 units'):
        LatencyModel(MACS, table)


def test_files(tmp_path):
    table = table_of(MACS, runtime='openvino')
    table.save(tmp_path / 't.json')
    assert LatencyTable.load(tmp_path / 't.json') == table
    with pytest.raises(FileNotFoundError, match='found none: `mmkcr latency-table`'):
        LatencyTable.load(tmp_path / 'none.json')
    entry = dict(machine={}, settings={})
    for content in (b'{', b'{"a": 1}', b'[]', b'\xff', *(json.dumps(found).encode() for found in (
            dict(entry, format_version=2), dict(entry, classes=[{}]),
            dict(entry, classes=[dict(sites=['a'], total=4, changes={'half': 1})])))):
        (tmp_path / 'bad.json').write_bytes(content)
        with pytest.raises(ValueError, match='bad.json'):
            LatencyTable.load(tmp_path / 'bad.json')


def bumpy(kinds, changes, layers=2, width=64):
    """Time with plateaus and bumps: sizes that are no multiple of 32 take as long as the next."""
    macs = macs_model(kinds, width, width, layers)
    changes = {str(size): change * 1000 for size, change in changes.items()}
    return LatencyModel(macs, LatencyTable({}, {}, DENSE, [
        dict(sites=list(macs.sites), total=width, measured=[], changes=changes)]))


def test_time_with_bumps_is_shared_out_nearly_as_by_enumeration():
    """Sites of one product, whose savings do not add up."""
    cost = bumpy(('mlp_hidden', 'mlp_channels'), {
        8: -1700, 16: -1400, 24: -900, 32: -1000, 40: -100, 48: -50, 56: 100})
    sizes, generator = range(8, 65, 8), torch.Generator().manual_seed(0)
    offered = {name: list(sizes) for name in cost.macs.sites}
    every = [dict(zip(offered, chosen)) for chosen in itertools.product(*offered.values())]
    costs = [cost(chosen) for chosen in every]
    found, best = [], []
    for _ in range(20):
        losses = {name: torch.cat([torch.rand(64, generator=generator).sort(descending=True)[0] *
                                   torch.rand(1, generator=generator), torch.zeros(1)])
                  for name in offered}
        target = int(min(costs) + (DENSE - min(costs)) * float(
            0.1 + 0.9 * torch.rand(1, generator=generator)))

        def lost(chosen, losses=losses):
            return sum(float(losses[name][size]) for name, size in chosen.items())

        chosen = share_budget(offered, losses, cost, target)
        assert cost(chosen) <= target
        found.append(lost(chosen))
        best.append(min(lost(other) for other, value in zip(every, costs) if value <= target))
    assert sum(best) <= sum(found) < 1.05 * sum(best)  # 1.4 times where bumps stop the solver


def test_sizes_that_save_no_time_are_not_taken():
    """Full size is faster than one below it that needs a selection."""
    cost = bumpy(('mlp_channels', ), {8: -200, 16: -160, 24: -120, 32: -80, 40: -40, 48: 0,
                                      56: 40}, layers=4)
    scores = {name: torch.arange(64.) for name in cost.macs.sites}

    def sizes(target):
        kept = solve_budget(scores, cost, int(target * DENSE), 8)
        return sorted(len(units) for units in kept.values())

    assert sizes(1.) == [64] * 4 and sizes(0.996) == [40, 64, 64, 64]
    assert sizes(0.992) == [40, 40, 64, 64]


@pytest.mark.parametrize('changes', [
    {8: -400, 16: -400, 24: -200, 32: -200, 40: -200, 48: 0, 56: 0},  # flat at the mean size
    {8: -400, 16: -300, 24: -200, 32: -200, 40: -190, 48: -210, 56: -100}])  # and nearly flat
@pytest.mark.parametrize('target', [0.9, 0.93, 0.96])
def test_options_on_plateaus_of_time(changes, target):
    """Nearly as likely as the likeliest by enumeration; equal sites that like large sizes."""
    cost = bumpy(('mlp_channels', ), {size: 2 * change for size, change in changes.items()},
                 layers=4)
    options = {name: list(range(8, 65, 8)) for name in cost.macs.sites}
    scores = {name: torch.linspace(0, 2, 8).tolist() for name in options}
    high = int(target * DENSE)

    def likelihood(places):
        return sum(map(scores[next(iter(scores))].__getitem__, places))

    window = [places for places in itertools.product(range(8), repeat=4) if 0.97 * high < cost({
        name: options[name][place] for name, place in zip(options, places)}) <= high]
    chosen = choose_options(options, scores, cost, int(0.97 * high) + 1, high)
    assert likelihood(chosen.values()) > max(map(likelihood, window)) - 0.6
