"""A subnet has the MACs that its structure says."""

import json
import re

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from mmpretrain.models import VisionTransformer

from mmkcr.engine.build import build_model
from mmkcr.methods.named import KCRVisionTransformer
from mmkcr.methods.search.slimming import slim
from mmkcr.models import Searchable

HOST = dict(arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64),
            img_size=32, patch_size=8, out_type='avg_featmap')


def config(**backbone):
    return Config(dict(default_scope='mmpretrain', model=dict(
        type='mmpretrain.ImageClassifier',
        backbone=dict(type='mmkcr.KCRVisionTransformer', **HOST, **backbone),
        head=dict(type='mmpretrain.LinearClsHead', num_classes=10, in_channels=32))))


@pytest.fixture(scope='module')
def structure(tmp_path_factory):
    """The file of a subnet of half the MACs, as a dict."""
    torch.manual_seed(0)
    supernet = build_model(config(gates=dict(type='mmkcr.GumbelChannelGate', min_size=4)))
    for gate in supernet.backbone.search_space.gates().values():
        torch.nn.init.normal_(gate.alpha)
    return slim(supernet, 0.8, input_shape=(3, 32, 32))[1].to_dict()


@pytest.fixture
def built(structure, tmp_path):
    """``built(change, **backbone)``: the model of a file that was changed by ``change(dict)``."""

    def build(change=lambda data: None, **backbone):
        data = json.loads(json.dumps(structure))
        change(data)
        (tmp_path / 'structure.json').write_text(json.dumps(data))
        return build_model(config(structure=str(tmp_path / 'structure.json'), **backbone))

    return build


def test_as_it_was_written(built, structure):
    assert structure['macs']['backbone'] < structure['macs']['subnet'] < structure['macs']['dense']
    built()
    built(lambda data: data['macs'].clear())


@pytest.mark.parametrize('part', ['macs', 'params'])
@given(data=st.data())
@settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))
def test_every_number_is_counted_again(built, structure, part, data):
    key = data.draw(st.sampled_from([key for key in structure[part] if key != 'input_shape']))
    off = data.draw(st.sampled_from([-1, 1, 1000]))
    with pytest.raises(ValueError, match='as its structure says, found one of|within those'):
        built(lambda found: found[part].update({key: found[part][key] + off}))


@pytest.mark.parametrize('change', [
    lambda data: data['macs'].update(backbone=data['macs']['backbone'] - 1),
    lambda data: data['macs'].update(part='backbone'),
    lambda data: data['macs'].update(input_shape=[3, 64, 64]),
    lambda data: data['sites']['layers.1.ffn.mlp_channels']['kept'].pop()])
def test_altered(built, change):
    with pytest.raises(ValueError, match=r'expected `KCRVisionTransformer` of \d+ MACs '
                       r'at .*, as its structure says, found one of \d+'):
        built(change)


@pytest.mark.parametrize('build', [
    lambda found: KCRVisionTransformer(**HOST, structure=found),
    lambda found: Searchable(VisionTransformer(**HOST), ['mlp_channels'], structure=dict(
        found, backbone=dict(type='mmkcr.Searchable')))])
def test_altered_in_ones_own_code(build, structure):
    build(structure)
    with pytest.raises(ValueError, match=r'VisionTransformer` of \d+ MACs .* found one of \d+'):
        build(dict(structure, macs=dict(structure['macs'],
                                        backbone=structure['macs']['backbone'] - 1)))


def test_a_search_that_began_with_a_subnet():
    host, kinds = dict(HOST, type='mmpretrain.VisionTransformer'), ['mlp_hidden', 'heads']
    space = Searchable(host, kinds).search_space
    start = space.structure_for({name: torch.arange(24) for name in space.sites if 'mlp' in name})
    supernet = Searchable(host, kinds, dict(heads=dict(type='mmkcr.GumbelChannelGate')), start)
    subnet, structure = slim(supernet, input_shape=(3, 32, 32))
    Searchable(host, kinds, structure=structure).load_state_dict(subnet.state_dict())


def test_another_backbone_of_equal_sites(built):
    """Positions, and so MACs, are others; the sites are the same."""
    with pytest.raises(ValueError, match='the arguments of the backbone were altered'):
        built(with_cls_token=False)


@pytest.mark.parametrize('part, by', [('macs', 10**6), ('params', 1000)])
def test_numbers_of_the_whole_that_moved_together_are_named(built, caplog, part, by):
    """Another head has others, too: a backbone alone cannot tell."""
    built()
    assert not caplog.records
    built(lambda data: data[part].update(
        subnet=data[part]['subnet'] + by, dense=data[part]['dense'] + by))
    assert 'has another head or the structure was edited' in caplog.text


def test_another_start_is_named(built, caplog):
    def change(data):
        data['provenance']['start'] = 'subnet'
        data['macs']['dense'] *= 3

    built(change)
    assert re.search(r'Not checked: .*, \d+ MACs when dense of the `KCRVision', caplog.text)


def test_a_shape_that_does_not_run(built):
    with pytest.raises(ValueError, match='3, 8, 3000'):
        built(lambda data: data['macs'].update(input_shape=[3, 8, 3000]))
