"""Gates that begin with the scores of compress: their order, and where the search begins."""

import json

import numpy as np
import pytest
import torch
from mmpretrain.models import VisionTransformer

from mmkcr.apis import compress
from mmkcr.apis.compress_files import write_sensitivity
from mmkcr.core import MacsModel
from mmkcr.engine.compressed_config import expand_compression
from mmkcr.methods.search.search_model import SearchModel, load_scores, start_from_scores
from mmkcr.models import Searchable
from mmkcr.models.tasks import task_forward

IMAGES = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
KINDS = ['mlp_hidden', 'heads']


def vit(out_type='featmap'):
    torch.manual_seed(0)
    model = VisionTransformer(
        arch=dict(embed_dims=32, num_layers=3, num_heads=4, feedforward_channels=64),
        img_size=32, patch_size=8, out_type=out_type)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3 if parameter.ndim == 2 else 0.1)
    model.eval()
    return model


@pytest.fixture(scope='module')
def scores(tmp_path_factory):
    """The file that compress writes."""
    path = tmp_path_factory.mktemp('scores') / 'sensitivity.json'
    write_sensitivity(compress(vit(), IMAGES, '70%', KINDS, (3, 32, 32), progress=False).profiles,
                      path)
    return path


@pytest.mark.parametrize('added', [(), ('qk_mask', )])
def test_units_that_gain_as_much_for_their_macs_begin_alike(added):
    """Layers that a kind adds to the network were taken off what a site's units save."""
    host = Searchable(VisionTransformer(
        arch=dict(embed_dims=64, num_layers=2, num_heads=4, feedforward_channels=256),
        layer_cfgs=[dict(feedforward_channels=256), dict(feedforward_channels=48)],
        img_size=32, patch_size=8), ['mlp_hidden', *added],
        dict(mlp_hidden=dict(type='mmkcr.GumbelChannelGate')))
    gates = host.search_space.gates()
    macs = MacsModel(host, host, host.search_space.gated_sites(), task_forward(host, (3, 32, 32)))
    totals, scores = {name: gate.total for name, gate in gates.items()}, {}
    for name, total in totals.items():
        each = (macs(totals) - macs({**totals, name: 1})) / (total - 1)
        scores[name] = np.arange(total), each * np.arange(total, -1, -1.)
    one, two = (float(logits.mean()) for logits in start_from_scores(gates, scores, macs).values())
    assert abs(one - two) < 0.1


GATES = [dict(type='mmkcr.GumbelChannelGate'), dict(type='mmkcr.GumbelChannelGate', init=0.5),
         dict(type='mmkcr.BiMaskGate')]


@pytest.mark.parametrize('gates', GATES)
def test_units_in_the_order_of_their_scores_from_the_same_expected_macs(gates, scores):
    host = Searchable(vit(), sites=KINDS, gates=gates)
    space = host.search_space
    macs = MacsModel(host, host, space.gated_sites(), task_forward(host, (3, 32, 32)))

    def expected():
        sizes = {name: gate.expected_size() for name, gate in space.gates().items()}
        return float(macs(sizes).detach())

    before, known = expected(), load_scores(scores)
    logits = start_from_scores(space.gates(), known, macs)
    assert expected() == pytest.approx(before, rel=1e-3)
    for name, gate in space.gates().items():
        found = gate.importance if gates['type'].endswith('BiMaskGate') else gate.alpha
        assert found.detach().argsort(descending=True).tolist() == known[name][0].tolist()
        assert logits[name].unique().numel() == gate.total
    ranked = torch.cat([*logits.values()])
    assert ranked.std() == pytest.approx(1, abs=0.05)


def test_open_gates_leave_the_function_as_it_is(scores):
    host, dense = Searchable(vit(), sites=KINDS, gates=GATES[0]), vit()
    macs = MacsModel(host, host, host.search_space.gated_sites(), task_forward(host, (3, 32, 32)))
    start_from_scores(host.search_space.gates(), load_scores(scores), macs)
    for gate in host.search_space.gates().values():
        gate.held_open = True
    with torch.no_grad():
        for found, wanted in zip(host(IMAGES[:2]), dense(IMAGES[:2])):
            assert torch.equal(found, wanted)


def test_a_site_that_loses_more_for_its_macs_begins_with_more_units(scores, tmp_path):
    data = json.loads(scores.read_text())
    first, second = (f'layers.{layer}.ffn.mlp_hidden' for layer in (0, 1))
    data[first]['losses'] = [100 * value for value in data[second]['losses']]
    (tmp_path / 'scores.json').write_text(json.dumps(data))
    host = Searchable(vit(), sites=KINDS, gates=GATES[1])
    space = host.search_space
    macs = MacsModel(host, host, space.gated_sites(), task_forward(host, (3, 32, 32)))
    start_from_scores(space.gates(), load_scores(tmp_path / 'scores.json'), macs)
    gates = space.gates()
    assert gates[first].expected_size() > gates[second].expected_size()


def config(scores, **price):
    return dict(
        type='mmkcr.SearchModel', scores=scores, price=dict(type='mmkcr.MacsPrice', **price),
        architecture=dict(
            type='mmpretrain.ImageClassifier',
            backbone=Searchable(vit('cls_token'), sites=KINDS, gates=GATES[0]),
            head=dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=32)))


def test_a_search_begins_with_them(scores):
    arguments = config(str(scores), input_shape=(3, 32, 32))
    arguments.pop('type')
    model = SearchModel(**arguments)
    known = load_scores(scores)
    for name, gate in model.gates().items():
        assert gate.alpha.detach().argsort(descending=True).tolist() == known[name][0].tolist()
    again = SearchModel(**{**arguments, 'scores': None})
    again.load_state_dict(model.state_dict())  # a resumed search needs no file


def test_a_config_names_the_file():
    from mmengine.config import Config
    found = expand_compression(Config(dict(
        default_scope='mmpretrain',
        model=dict(type='ImageClassifier', backbone=dict(type='VisionTransformer', img_size=32)),
        compression=dict(sites=KINDS, gates=GATES[0], wrapper='mmkcr.SearchModel',
                         price=dict(type='mmkcr.MacsPrice'), scores='slim/sensitivity.json'))))
    assert found.model.scores == 'slim/sensitivity.json'
    assert found.model.price.input_shape == (3, 32, 32)


@pytest.mark.parametrize('content, message', [
    ('{}', 'expected a sensitivity file with sites'),
    ('{"a": {"order": [0, 0], "losses": [1, 1, 0]}}', 'an order of units and a loss'),
    ('{"a": {"order": [0, 1], "losses": [1, 0]}}', 'an order of units and a loss'),
    ('{"a": 3}', 'an order of units and a loss'),
    ('{"a": {"order": [0, 1], "losses": [2, 1, 0]}}', 'expected scores of some of the sites'),
    ('{"layers.0.ffn.mlp_hidden": {"order": [1, 0], "losses": [2, 1, 0]}}',
     'expected scores of 64 units at site'),
])
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(content, message, tmp_path):
    (tmp_path / 'scores.json').write_text(content)
    arguments = config(str(tmp_path / 'scores.json'), input_shape=(3, 32, 32))
    arguments.pop('type')
    with pytest.raises(ValueError, match=message) as error:
        SearchModel(**arguments)
    assert '\n' not in str(error.value)


def test_without_an_image_there_is_no_expected_cost(scores):
    arguments = config(str(scores))
    arguments.pop('type')
    with pytest.raises(ValueError, match='expected a price with `input_shape`'):
        SearchModel(**arguments)
