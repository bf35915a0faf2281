"""Tables of latencies, and compression to a time; the clock is a count of MACs."""

import json

import pytest
import torch
from mmpretrain.models import SwinTransformer

from mmkcr.apis import count_macs
from mmkcr.closed_form.compression import compress
from mmkcr.core import LatencyModel, LatencyTable, MacsModel, load_table
from mmkcr.deploy import latency_table
from mmkcr.deploy.latency_table import check_prediction, ensure_search_space, measure_table
from mmkcr.methods.named import KCRSwinTransformer, KCRVisionTransformer
from mmkcr.models.tasks import task_forward

SHAPE = (3, 32, 32)
SETTINGS = dict(runtime='eager', threads=1, batch=2, input_shape=list(SHAPE), part=None)
VIT = dict(arch=dict(embed_dims=32, num_layers=3, num_heads=4, feedforward_channels=64),
           img_size=32, patch_size=8)
SWIN = dict(arch=dict(embed_dims=16, depths=[1, 2], num_heads=[2, 4]), img_size=32,
            window_size=4, patch_size=4, out_indices=[1])
NS = 7  # of a MAC


@pytest.fixture
def measured(monkeypatch):
    """Time is MACs; gives what was timed, as shares of the dense MACs."""
    found = []

    def time_against(dense, subnet, settings, repeats=15):
        assert settings.items() >= SETTINGS.items()
        macs = [count_macs(side, SHAPE) for side in (dense, subnet)]
        found.append(macs[1] / macs[0])
        return NS * macs[0], found[-1]

    monkeypatch.setattr(latency_table, 'time_against', time_against)
    return found


@pytest.mark.parametrize('cls, kwargs, classes', [(KCRVisionTransformer, VIT, 1),
                                                  (KCRSwinTransformer, SWIN, 2)])
def test_sites_that_cost_the_same_are_measured_once(cls, kwargs, classes, measured, tmp_path):
    path, model = tmp_path / 'table.json', cls(**kwargs)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lines = list(measure_table(model, path, SETTINGS, ['mlp_hidden'], 8))
    table = load_table(path, dict(runtime='eager', batch=2))
    assert len(table.classes) == classes and len(lines) == len(measured)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert table.dense == NS * count_macs(model, SHAPE)
    assert table.settings == SETTINGS
    for name, (total, sizes, changes) in table.curves().items():
        assert sizes[-2] < total == sizes[-1] and changes[-1] == 0
        assert changes == sorted(changes) and changes[0] < 0  # more MACs, more time
        slopes = [change / (total - size) for size, change in zip(sizes[:-1], changes)]
        assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=1e-3), name


@pytest.mark.parametrize('heads', [3, 6])
def test_channels_are_cut_equally_in_every_head(heads, monkeypatch, tmp_path):
    """What is recorded is what was timed, and what `compress` may choose."""
    timed = []

    def time_against(dense, subnet, settings, repeats=15):
        timed.append({len(site.kept) for site in subnet.search_space.structure.sites.values()})
        return 1e6, 0.9

    monkeypatch.setattr(latency_table, 'time_against', time_against)
    model = KCRVisionTransformer(**dict(VIT, arch=dict(VIT['arch'], embed_dims=48,
                                                       num_heads=heads)))
    list(measure_table(model, tmp_path / 'table.json', SETTINGS, ['head_channels'], 2))
    measured = load_table(tmp_path / 'table.json').classes[0]['measured']
    assert timed == [{size} for size in measured]
    assert all(size % (2 * heads) == 0 for size in measured)


def test_a_stopped_measurement_goes_on(measured, tmp_path):
    path = tmp_path / 'table.json'
    first = measure_table(KCRVisionTransformer(**VIT), path, SETTINGS, ['mlp_hidden'])
    next(first)
    next(first)
    with pytest.raises(ValueError, match='a finished table in .*, found sizes that were not'):
        load_table(path)
    list(measure_table(KCRVisionTransformer(**VIT), path, SETTINGS, ['mlp_hidden']))
    again = dict(SETTINGS, input_shape=SHAPE)
    assert not list(measure_table(KCRVisionTransformer(**VIT), path, again, ['mlp_hidden']))
    table = load_table(path)
    assert len(measured) == sum(len(entry['measured']) for entry in table.classes)
    with pytest.raises(ValueError, match='same machine, settings and sites at .*, found another'):
        list(measure_table(KCRVisionTransformer(**VIT), path, SETTINGS, ['heads']))


@pytest.mark.parametrize('kinds, target, share', [
    (['mlp_hidden'], 0.75, 0.75), (['mlp_hidden', 'heads'], '80%', 0.8)])
def test_compression_to_a_time(kinds, target, share, measured, tmp_path):
    torch.manual_seed(0)
    model, path = KCRVisionTransformer(**VIT), tmp_path / 'table.json'
    list(measure_table(model, path, SETTINGS, kinds, 8))
    table = load_table(path)
    result = compress(model, torch.randn(32, *SHAPE), target, kinds, SHAPE, latency=table,
                      divisor=8)
    said = result.structure.provenance['latency']
    assert share - 0.15 < said['subnet'] / said['dense'] <= share
    assert (said['runtime'], said['hardware']) == ('eager', table.machine['hardware'])
    # as time is MACs here, the prediction is exact, and so is the budget
    macs = result.structure.macs
    assert macs['subnet'] / macs['dense'] == pytest.approx(said['subnet'] / said['dense'], rel=1e-4)
    sentence = check_prediction(model, result.model, said)
    assert 'in `eager`, batch 2, threads 1: predicted' in sentence and '+0.0%' in sentence
    with pytest.raises(ValueError, match='a target within the reachable .* ms to .* ms, found'):
        compress(model, torch.randn(16, *SHAPE), '1%', kinds, SHAPE, latency=table)


def test_sites_with_one_unit_cost_what_they_cost(tmp_path):
    """Whole heads of a stage that has one."""
    model = SwinTransformer(arch=dict(embed_dims=16, depths=[1, 1], num_heads=[1, 2]), img_size=32,
                            window_size=4, patch_size=4, out_indices=[1])
    path, settings = tmp_path / 'table.json', dict(SETTINGS, batch=1)
    list(measure_table(model, path, settings, ['heads'], 8, 1))
    space = ensure_search_space(model, ['heads'])
    times = LatencyModel(MacsModel(model, space.host, space.sites, task_forward(model, SHAPE)),
                         load_table(path))
    assert times({name: site.total for name, site in space.sites.items()}) == times.dense
    lonely = SwinTransformer(arch=dict(embed_dims=16, depths=[1], num_heads=[1]), img_size=32,
                             window_size=4, patch_size=4, out_indices=[0])
    with pytest.raises(ValueError, match='expected sites with sizes to choose from, found 1 kinds'):
        list(measure_table(lonely, tmp_path / 'none.json', settings, ['heads'], 8, 1))


def test_tables_of_others_are_refused(measured, tmp_path):
    path = tmp_path / 'table.json'
    list(measure_table(KCRVisionTransformer(**VIT), path, SETTINGS, ['mlp_hidden']))
    with pytest.raises(ValueError, match="about {'threads': 2} in .*, found {'threads': 1}"):
        load_table(path, dict(threads=2))
    content = json.loads(path.read_text())
    content['machine']['hardware'] = 'another-64-cores'
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="a table about .*, found {'hardware': 'another-64-co"):
        load_table(path)
    assert load_table(path, force=True) == LatencyTable.load(path)


@pytest.mark.parametrize('measured, said', [
    (0.83, None), (0.85, 'above'), (0.77, None), (0.75, 'below')])
def test_a_prediction_that_is_off_is_warned_of(measured, said, monkeypatch):
    monkeypatch.setattr(latency_table, 'time_against', lambda *_: (1e7, measured))
    predicted = dict(SETTINGS, dense=10_000_000, subnet=8_000_000)
    first, *warning = check_prediction(None, None, predicted).split('\n')
    assert first.endswith(f'measured {measured:.1%} ({measured / 0.8 - 1:+.1%} of the prediction)')
    assert len(warning) == (said is not None)
    for line in warning:
        assert line.startswith(f'warning: the measured time is more than 5% {said} the prediction')


def test_threads_of_a_timing_do_not_stay():
    model, seen = KCRVisionTransformer(**VIT), set()
    model.register_forward_hook(lambda *_: seen.add(torch.get_num_threads()))
    before = torch.get_num_threads()
    latency_table.time_against(model, model, dict(SETTINGS, threads=before + 1), 1)
    assert (seen, torch.get_num_threads()) == ({before + 1}, before)
