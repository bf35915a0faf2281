"""score_heads.py: from a checkpoint to a structure file and weights that a config trains from."""

import dataclasses
import json
import os
import socket
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.multiprocessing import start_processes

from lab.head_scores import HeadStatistics
from mmkcr.core import Structure
from mmkcr.engine.build import build_model, load_config, load_weights
from mmkcr.models.head_choice import select_heads

REPO = Path(__file__).parents[2]
CONFIG = str(REPO / 'configs/dwconv/digits/dwconv-dense_vit-octo_1xb64_digits.py')
TOOL = 'analysis_tools/score_heads'


@pytest.mark.parametrize('blockwise, which, left', [
    (True, 'lowest', [[0, 1], [], []]), (True, 'highest', [[], [0, 1], []]),
    (False, 'lowest', [[0, 1], [1], [1]]), (False, 'highest', [[0], [0, 1], [0]])])
def test_selections(blockwise, which, left):
    scores = {'a': torch.tensor([3., 9.]), 'b': torch.tensor([1., 4.]), 'c': torch.tensor([2., 5.])}
    kept = select_heads(scores, 2, which, blockwise)
    assert {site: heads.tolist() for site, heads in kept.items()} == dict(zip('abc', left))


def test_random_selections_follow_the_seed():
    scores = {str(i): torch.rand(2) for i in range(20)}
    draws = [select_heads(scores, 10, 'random', seed=seed) for seed in (0, 0, 1)]
    kept = [[site for site in scores if len(draw[site])] for draw in draws]
    assert kept[0] == kept[1] != kept[2] and len(kept[0]) == 10


@pytest.mark.parametrize('kwargs, message', [
    (dict(count=-1), '0 to 3 blocks to replace, found -1'), (dict(count=1, which='best'), "'best'"),
    (dict(count=1.5), 'a share between 0 and 1, .*found 1.5')])
def test_bad_selections(kwargs, message):
    with pytest.raises(ValueError, match=message):
        select_heads({str(i): torch.rand(2) for i in range(3)}, **kwargs)


@pytest.fixture
def roots(small_digits):
    return ['--cfg-options', *(f'{part}_dataloader.dataset.data_root={small_digits}'
                               for part in ('train', 'val'))]


@pytest.fixture(scope='module')
def dense(make_checkpoint):
    """A checkpoint of the dense network."""
    return make_checkpoint(CONFIG, epoch=16, std=0.1)


def test_from_checkpoint_to_a_training(run_tool, roots, dense, tmp_path):
    out = run_tool(TOOL, CONFIG, dense, '--images', 24, '--replace', 4, '--out', tmp_path,
                   *roots)
    assert 'layers.7.attn' in out and 'structure.json' in out
    scores = json.loads((tmp_path / 'scores.json').read_text())
    means = {site: sum(score) / 4 for site, score in scores['scores'].items()}
    assert (tmp_path / 'scores.png').stat().st_size > 5000
    structure = Structure.load(tmp_path / 'structure.json')
    replaced = {site for site, found in structure.sites.items() if not found.kept}
    assert replaced == set(sorted(means, key=means.get)[:4])
    assert structure.provenance['epoch'] == 16
    assert structure.macs['subnet'] < structure.macs['dense']

    # the written files train on, strictly, and keep v and the projection of the dense network
    config = load_config(REPO / 'configs/dwconv/digits/dwconv-replace_vit-octo_1xb64_digits.py')
    config.model.backbone.structure = str(tmp_path / 'structure.json')
    again = build_model(config)
    load_weights(again, tmp_path / 'subnet.pth')
    name = f'backbone.{next(iter(replaced)).rpartition(".")[0]}.qkv.weight'
    state = torch.load(dense, weights_only=False)['state_dict']
    assert torch.equal(again.get_parameter(name), state[name][128:])


def edited(structure, operator):
    sites = {name: dataclasses.replace(site, operator=site.operator and operator)
             for name, site in structure.sites.items()}
    return dataclasses.replace(structure, sites=sites)


def test_dense_weights_for_a_learned_selection(run_tool, dense, tmp_path, monkeypatch):
    """Two-stage DSP: the structure is that of the file, and no image is read."""
    model = build_model(load_config(CONFIG))
    sites = list(model.backbone.search_space.sites)
    kept = {site: torch.arange(0 if site in sites[1:3] else 4) for site in sites}
    learned = model.backbone.search_space.structure_for(kept)
    # a search of ensembles is slimmed to folded ones; what is trained again is not folded
    learned = edited(learned, 'ensembled-dwconv-folded')
    learned.save(tmp_path / 'learned.json')
    monkeypatch.setattr('lab.replace_heads.split_loader', None)
    assert 'MACs (G)' in run_tool(TOOL, CONFIG, dense, '--structure', 'learned.json', '--out',
                                  'out')
    found = Structure.load(tmp_path / 'out/structure.json')
    assert found.sites == edited(learned, 'ensembled-dwconv').sites
    assert found.macs['subnet'] < found.macs['dense']
    name = 'backbone.layers.1.attn.qkv.weight'
    state, whole = (torch.load(path, weights_only=False)['state_dict']
                    for path in (tmp_path / 'out/subnet.pth', dense))
    assert torch.equal(state[name], whole[name][128:])


def test_blocks_and_scores_are_as_good_as_scoring(run_tool, roots, dense, tmp_path, monkeypatch):
    """What one call has scored, others choose from without an image."""

    def written(name, *arguments):
        run_tool(TOOL, CONFIG, dense, '--out', tmp_path / name, *arguments)
        state = torch.load(tmp_path / name / 'subnet.pth', weights_only=False)['state_dict']
        return Structure.load(tmp_path / name / 'structure.json').sites, state

    def assert_same(one, two):
        assert one[0] == two[0] and list(one[1]) == list(two[1])
        assert all(torch.equal(value, two[1][key]) for key, value in one[1].items())

    scored = written('scored', '--images', '24', '--replace', '3', *roots)
    monkeypatch.setattr('lab.replace_heads.split_loader', None)
    blocks = [str(index) for index, site in enumerate(scored[0].values()) if not site.kept]
    assert len(blocks) == 3
    assert_same(written('blocks', '--blocks', *reversed(blocks)), scored)
    file = str(tmp_path / 'scored/scores.json')
    assert_same(written('file', '--scores', file, '--replace', '3'), scored)
    # what else can be chosen: test_models/test_backbones/test_dwconv_vit.py
    found, _ = written('single', '--scores', file, '--scattered', '--which', 'highest',
                       '--operator', 'conv', '--replace', '0.25')
    assert sum(site.total - len(site.kept) for site in found.values()) == 8
    assert {site.operator for site in found.values()} == {None, 'conv'}


@pytest.mark.parametrize('arguments, message', [
    (['--blocks', '1', '--scattered'], "found ['blocks', 'operator', 'scattered']"),
    (['--scores', 'no.json', '--replace', '2'], 'expected a scores file at `no.json`'),
    (['--images', '1'], 'at least two images'),
    (['--device', 'cuda'], 'expected a CUDA device'),
    (['--launcher', 'pytorch'], 'the environment variable `RANK`'),
])
def test_bad_input_is_one_sentence(refused, arguments, message, roots, dense, monkeypatch):
    monkeypatch.delenv('RANK', raising=False)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    assert message in refused(TOOL, CONFIG, dense, '--out', 'out', *arguments, *roots)


def test_before_the_data_is_read(refused, roots, dense, tmp_path, monkeypatch):
    """Too many heads, and a file where the folder should be."""
    monkeypatch.setattr('lab.replace_heads.split_loader', None)
    assert '0 to 32 heads to replace, found 33' in refused(
        TOOL, CONFIG, dense, '--replace', 33, '--scattered', *roots)
    (tmp_path / 'out').write_text('mine')
    assert f'found a file at `{tmp_path / "out"}`' in refused(
        TOOL, CONFIG, dense, '--images', 4, '--out', tmp_path / 'out', *roots)
    assert (tmp_path / 'out').read_text() == 'mine'


def rank_job(rank, port, main, arguments):
    """One of two processes, as torchrun starts it."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2',
                      MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port))
    main(arguments)
    torch.distributed.destroy_process_group()


@pytest.mark.long
def test_two_processes_are_one(load_tool, roots, dense, tmp_path, capfd):
    """13 images go to one process, 12 to the other; test_train_test.py runs the launcher."""

    main, call = load_tool(TOOL).main, [CONFIG, dense, '--images', '25', '--replace', '4']
    main([*call, '--out', str(tmp_path / 'one'), *roots])
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    capfd.readouterr()
    call += ['--out', str(tmp_path / 'two'), '--launcher', 'pytorch', *roots]
    start_processes(rank_job, (port, main, call), 2, start_method='fork')
    assert capfd.readouterr().out.count('layers.7.attn') == 1  # one of the two prints
    one, two = (json.loads((tmp_path / name / 'scores.json').read_text())
                for name in ('one', 'two'))
    for site, score in one.pop('scores').items():
        np.testing.assert_allclose(two['scores'].pop(site), score, rtol=1e-9)
    assert two.pop('scores') == {} and one == two and one['images'] == 25
    kept = [Structure.load(tmp_path / name / 'structure.json').sites for name in ('one', 'two')]
    assert kept[0] == kept[1]


SMALL = """
_base_ = {base!r}
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=32, num_layers=3, num_heads=2,
                  feedforward_channels=64),
        init_cfg=None),
    decode_head=dict(in_channels=32, channels=32, num_classes=10))
"""


@pytest.mark.long
def test_shipped_segmentors_are_scored_on_the_windows_that_they_slide(
        run_tool, make_checkpoint, tmp_path, monkeypatch):
    """Images of several sizes, ratio kept; the network slides windows of 336 px over them."""
    path, sizes = tmp_path / 'small.py', [(512, 683), (640, 512), (512, 512), (336, 336)]
    path.write_text(SMALL.format(base=str(
        REPO / 'configs/dwconv/segmentation/dwconv-fcn_dinov2-vit-base_dense_8xb2_ade20k.py')))
    config, generator = load_config(path), np.random.default_rng(0)
    for part, (kind, shape, suffix) in product(('train', 'val'), (
            ('img_path', (3, ), '.jpg'), ('seg_map_path', (), '.png'))):
        folder = tmp_path / 'data' / config[f'{part}_dataloader'].dataset.data_prefix[kind]
        folder.mkdir(parents=True)
        for index, size in enumerate(sizes):
            Image.fromarray(generator.integers(0, 9, (*size, *shape), dtype=np.uint8)).save(
                folder / f'{index}{suffix}')
    grids, run = [], HeadStatistics._counts
    monkeypatch.setattr(HeadStatistics, '_counts', lambda self, name, images: grids.append(
        (name, tuple(self.grid.hw), images)) or run(self, name, images))
    run_tool(TOOL, path, make_checkpoint(path), '--images', len(sizes), '--out', 'out',
             '--replace', 1, '--cfg-options', *(
                 f'{part}_dataloader.dataset.data_root={tmp_path / "data"}'
                 for part in ('train', 'val')),
             'val_dataloader.num_workers=0', 'val_dataloader.persistent_workers=False')
    scores = json.loads((tmp_path / 'out/scores.json').read_text())['scores']
    assert list(scores) == [f'layers.{i}.attn.head_operator' for i in range(3)]
    assert all(score > 0 for found in scores.values() for score in found)
    # 512 px on the short side: 2 x 3, 3 x 2 and twice 2 x 2 windows of 336 px, stride 224
    windows = [images for name, _, images in grids if name == 'layers.0.attn.head_operator']
    assert {hw for _, hw, _ in grids} == {(24, 24)} and sum(windows) == 6 + 6 + 4 + 4
    assert Structure.load(tmp_path / 'out/structure.json').sites
