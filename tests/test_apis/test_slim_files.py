"""Weights and structure of a subnet belong together, whenever the process is killed."""

import copy
import logging
import os
import re
import shlex

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import load_checkpoint

from mmkcr.apis.slim_files import SubnetFiles, config_text, write_config, write_subnet
from mmkcr.cli.compress_config import next_steps
from mmkcr.closed_form.compression import compress_network, refit_structure
from mmkcr.closed_form.options import CompressOptions
from mmkcr.core import KEPT, Structure, digest, write_tensors
from mmkcr.engine.build import build_model, load_config, load_weights, set_structure

SHAPE = (3, 16, 16)
DENSE = Config(dict(default_scope='mmpretrain', model=dict(
    type='ImageClassifier', backbone=dict(
        type='VisionTransformer', img_size=16, patch_size=8, arch=dict(
            embed_dims=8, num_layers=2, num_heads=2, feedforward_channels=16)),
    head=dict(type='VisionTransformerClsHead', num_classes=4, in_channels=8))))
SITE = 'layers.0.ffn.mlp_hidden'


def compressed(seed):
    """Equal sizes, of other units for another seed."""
    torch.manual_seed(seed)
    images = torch.randn(8, *SHAPE)
    model = build_model(DENSE)
    return compress_network(model, images, CompressOptions(
        target='90%', sites=['mlp_hidden'], input_shape=SHAPE, uniform=True, divisor=1,
        progress=False))


@pytest.fixture(scope='module')
def pair():
    """Two subnets of equal shapes."""
    one, other = map(compressed, (0, 1))
    assert one.structure.sizes() == other.structure.sizes()
    assert one.structure.sites != other.structure.sites
    return one, other


def write(result, folder, config=DENSE):
    """Write what ``mmkcr compress`` writes."""
    write_config(config, 'backbone', folder, result.structure)
    write_subnet(result.model, result.structure, {}, folder)


def read(folder):
    """The network of a folder's config, and its weights by ``mmkcr test`` and ``export``."""
    model = build_model(load_config(folder / 'config.py'))
    load_weights(model, folder / 'subnet.pth')
    return model


def test_whoever_makes_a_subnet_records_its_units(pair):
    """`compress` did not."""
    structure = pair[0].structure
    again = refit_structure(build_model(DENSE), structure, torch.randn(4, *SHAPE), CompressOptions(
        input_shape=SHAPE, progress=False))
    for result in (pair[0], again):
        kept = result.model.state_dict()[f'backbone.{KEPT}']
        assert torch.equal(kept, digest(structure.sites))


def test_weights_of_another_call_are_refused_by_every_reader(pair, tmp_path):
    for name, result in zip(('one', 'other'), pair):
        write(result, tmp_path / name)
        read(tmp_path / name)
    os.replace(tmp_path / 'other/subnet.pth', tmp_path / 'one/subnet.pth')
    with pytest.raises(ValueError, match=f'keeps at site `{SITE}`, found .* in `.*subnet.pth`'):
        read(tmp_path / 'one')
    model = build_model(load_config(tmp_path / 'one/config.py'))
    with pytest.raises(ValueError, match='found other kept units'):  # the host's own reader
        load_checkpoint(model, str(tmp_path / 'one/subnet.pth'))
    config = load_config(tmp_path / 'one/config.py')
    set_structure(config, str(tmp_path / 'one/subnet.pth'))  # it holds its own
    load_weights(build_model(config), tmp_path / 'one/subnet.pth')


def test_weights_without_a_record_are_named(pair, tmp_path, caplog):
    result, other = pair
    write(result, tmp_path)
    content = torch.load(tmp_path / 'subnet.pth', weights_only=True)
    del content['state_dict'][f'backbone.{KEPT}'], content['meta']['sha256']
    torch.save(content, tmp_path / 'subnet.pth')
    with caplog.at_level(logging.WARNING, 'mmkcr'):
        read(tmp_path)  # of an earlier version: its structure is compared
        assert not caplog.records
        torch.save(dict(state_dict=content['state_dict']), tmp_path / 'subnet.pth')
        read(tmp_path)
    assert 'do not say which units they are of' in caplog.text
    content['meta']['structure'] = other.structure.to_dict()
    torch.save(content, tmp_path / 'subnet.pth')
    with pytest.raises(ValueError, match='found those of others'):
        read(tmp_path)
    torch.save(dict(state_dict=build_model(DENSE).state_dict()), tmp_path / 'subnet.pth')
    with pytest.raises(ValueError, match='as of the dense network'):
        read(tmp_path)


@pytest.mark.parametrize('change', [
    lambda structure: structure.provenance.update(agreement=0),
    lambda structure: structure.macs.update(dense=structure.macs['dense'] + 10**6,
                                            subnet=structure.macs['subnet'] + 10**6)])
def test_an_edited_structure_is_named(pair, tmp_path, caplog, change):
    write(pair[0], tmp_path)
    structure = Structure.load(tmp_path / 'structure.json')
    change(structure)
    structure.save(tmp_path / 'structure.json')
    with caplog.at_level(logging.WARNING, 'mmkcr'):
        read(tmp_path)
    assert 'was edited since' in caplog.text


def test_edited_weights_are_named(pair, tmp_path, caplog):
    write(pair[0], tmp_path)
    read(tmp_path)
    assert not caplog.records
    content = torch.load(tmp_path / 'subnet.pth', weights_only=True)
    for part, key, value in (('meta', 'epoch', 7), ('state_dict', 'head.layers.head.bias',
                                                    torch.zeros(4))):
        changed = {**content, part: {**content[part], key: value}}
        torch.save(changed, tmp_path / 'subnet.pth')
        caplog.clear()
        read(tmp_path)
        assert 'subnet.pth` were edited since' in caplog.text


@pytest.mark.parametrize('last', ['config.py', 'structure.json', 'subnet.pth', None])
@pytest.mark.parametrize('other_config', [False, True])
def test_one_rename_decides(pair, tmp_path, monkeypatch, last, other_config):
    """What is there after a kill loads as the old or the new network, or is refused."""
    config, rename = copy.deepcopy(DENSE), os.replace
    if other_config:  # other outputs from the same weights
        config.model.backbone.final_norm = True
        config.model.backbone.norm_cfg = dict(type='LN', eps=0.5)
    write(pair[0], tmp_path)

    def killed(source, target):
        if target.name == last:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, 'replace', killed)
    if last is None:
        write(pair[1], tmp_path, config)
    else:
        with pytest.raises(KeyboardInterrupt):
            write(pair[1], tmp_path, config)
    monkeypatch.undo()
    image = torch.randn(2, *SHAPE)
    expected = []
    for name, result, of in (('old', pair[0], DENSE), ('new', pair[1], config)):
        write(result, tmp_path / name, of)
        expected.append(read(tmp_path / name)(image))
    try:
        found = read(tmp_path)(image)
    except (ValueError, FileNotFoundError) as error:
        assert '\n' not in str(error) and last is not None
        write(pair[1], tmp_path, config)  # repeated
        found = read(tmp_path)(image)
        assert torch.equal(found, expected[1])
    assert any(torch.equal(found, one) for one in expected)
    assert last is not None or torch.equal(found, expected[1])


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    (tmp_path / 'full').symlink_to('/dev/full')
    with pytest.raises(OSError, match='No space left'):
        write_tensors(dict(weight=torch.ones(9)), tmp_path / 'full')


@pytest.mark.parametrize('name', ['slim', "O'Brien", 'an "other" one', """'" '\'\' "" '"""])
def test_files_in_a_folder_of_any_name(tmp_path, name):
    """The config, which is Python, finds its weights, and commands are for a shell."""
    folder = tmp_path / name
    folder.mkdir()
    config = Config(dict(load_from='{{ fileDirname }}/subnet.pth', model=dict(
        structure='{{ fileDirname }}/structure.json')))
    (folder / 'config.py').write_text(config_text(config))
    read = Config.fromfile(folder / 'config.py')
    assert read.load_from == f'{folder}/subnet.pth'
    assert read.model.structure == f'{folder}/structure.json'
    classifier = torch.nn.Identity()
    structure = Structure('slim', {}, macs=dict(input_shape=[*SHAPE]))
    files = SubnetFiles(classifier, classifier, structure, folder)
    commands = [shlex.split(text) for text in re.findall(r'`(mmkcr (?:(?! `|`[,.]| \().)*)`',
                                                         next_steps(files))]
    assert [words[2] for words in commands] == [str(folder / 'config.py')] * 3
