"""Closed-form slimming of whole detectors and segmentors: one budget, one structure file."""

import copy
import json

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from long_form import every_nth, few
from mmkcr.apis import slim as slim_supernet
from mmkcr.apis.compress_files import FileOptions, build_task, compress_files, distil_files
from mmkcr.cli.init import init_config
from mmkcr.closed_form.compression import agreement, compress, macs_model
from mmkcr.closed_form.options import open_search_space
from mmkcr.closed_form.whole import HeldBatches, some_proposals, whole_outputs
from mmkcr.distillation import distil
from mmkcr.engine.build import build_model, dense_config, load_config, load_weights, set_structure
from mmkcr.engine.compressed_config import expand_compression
from mmkcr.models.counting import count_macs, count_parts
from mmkcr.models.sites import find_sites
from .whole_models import DETECTORS, batches, build, config_of

SHAPE = (3, 64, 64)
FAST = dict(least_images=2, probe_images=2, progress=False, divisor=2)


def slim(model, target, found, **options):
    return compress(model, found, target, input_shape=SHAPE, part='model', scope='model',
                    held_out=found, **{**FAST, **options})


@pytest.mark.parametrize('name, target, options', [
    *((name, 0.7, {}) for name in few(
        ('upernet', 'mask_rcnn', 'cascade', 'cascade_of_boxes', 'dino', 'mask2former'),
        'upernet', 'mask_rcnn', 'dino')),
    *((name, target, dict(sites=['channels'], uniform=True))
      for name, target in (('upernet', 0.8), ('segformer', 0.995)))])
def test_one_budget_for_the_whole_model(name, target, options):
    """Refitted units are nearer than selected ones."""
    if name in DETECTORS:
        pytest.importorskip('mmcv.ops')
    torch.manual_seed(0)
    model = build(name)
    found = batches(model, 2)
    result = slim(model, target, found, **options)
    structure, macs = result.structure, count_macs(result.model, SHAPE)
    assert macs == structure.macs['subnet'] <= target * structure.macs['dense']
    assert structure.macs['dense'] == count_macs(model, SHAPE)
    assert options or 0.97 * 0.7 <= macs / structure.macs['dense']
    without = slim(model, target, found, profiles=result.profiles, refit='none', **options)
    assert without.structure.sites == structure.sites
    assert result.agreement['error'] < without.agreement['error']


@pytest.mark.parametrize('name', ['upernet', 'segformer'])
def test_channels_that_are_twins_cost_nothing(name):
    """Behind their norms, too."""
    torch.manual_seed(0)
    model = build(name).double()
    for site in find_sites(model, ['channels']).values():
        for path in filter(None, (*site.view.writers, *site.view.norms)):
            for values in model.get_submodule(path).state_dict().values():
                if values.ndim:
                    values[len(values) // 2:] = values[:len(values) // 2]
    found = batches(model, 2, dtype=torch.float64)
    copied = copy.deepcopy(model)
    space = open_search_space(copied, ['channels'], 'model')
    half = {name: total // 2 for name, total in space.totals().items()}
    target = int(macs_model(copied, space, SHAPE, 'model')(half))
    result = slim(model, target, found, sites=['channels'], uniform=True, rho=1e-10,
                  order_rho=1e-10)
    assert result.structure.sizes() == half
    assert result.agreement['error'] < 1e-6


def test_proposals_of_all_ranks_are_looked_at():
    """A head that is fitted to the best ones alone says anything about the others."""
    boxes = torch.arange(50.)[:, None].expand(-1, 4)
    taken = some_proposals(boxes, 6, torch.zeros(1, 3, 8, 8))[:, 0].tolist()
    assert taken == [0, 1, 2, 3, 26, 49]
    assert some_proposals(boxes, 50, boxes)[:, 0].tolist() == boxes[:, 0].tolist()
    assert some_proposals(boxes[:2], 5, boxes)[:, 0].tolist() == [0, 1, 0, 1, 0]
    assert some_proposals(boxes[:0], 2, torch.zeros(1, 3, 8, 9)).tolist() == [[0, 0, 9, 8]] * 2


def test_both_networks_look_at_what_the_dense_one_chose():
    pytest.importorskip('mmcv.ops')
    torch.manual_seed(0)
    for name, rows, stages in (('mask_rcnn', 10, 1), ('cascade', 10, 3), ('dino', 9, 0)):
        dense, other = build(name), build(name)
        found = HeldBatches(batches(dense, 2), dense)
        held = found[1]['held']
        assert (held.boxes is None) == (name == 'dino') == (held.scores is not None)
        if held.boxes is not None:
            assert [[len(boxes) for boxes in of_stage] for of_stage in held.boxes] == \
                stages * [[rows, rows]]
        assert found[1:][0]['held'] is not None and len(found[:1]) == 1
        assert agreement(dense, dense, found, whole_outputs)['error'] == 0
        assert agreement(dense, other, found, whole_outputs)['error'] > 0


@pytest.mark.parametrize('name', every_nth(2, ['mask_rcnn', 'dino']))
def test_a_whole_detector_is_distilled(name):
    """On all outputs for the dense network's choices, though neck and heads are narrower."""
    pytest.importorskip('mmcv.ops')
    torch.manual_seed(0)
    dense = build(name)
    found = batches(dense, 3)
    student = slim(dense, 0.8, found, uniform=True).model
    lessons, compared = (HeldBatches(part, dense) for part in (found[:2], found[2:]))
    result = distil(student, dense, lessons, 2, whole_outputs, compared, comparisons=2)
    assert sorted(result.errors) == [0, 1, 2]
    assert result.errors[result.best] <= result.errors[0]


def test_files_of_a_whole_model(tmp_path):
    """The config that is written builds the slim model, and takes its weights whole or not.

    It is distilled, in its place.
    """
    torch.manual_seed(0)
    config = config_of('upernet')
    config.test_dataloader = ConfigDict(dataset=dict(pipeline=[
        dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64), keep_ratio=False),
        dict(type='PackSegInputs')]))
    (tmp_path / 'dense.py').write_text(config.pretty_text)
    torch.save(dict(state_dict=build_model(config).state_dict()), tmp_path / 'dense.pth')
    images = tmp_path / 'images'
    images.mkdir()
    from PIL import Image
    for number in range(3):
        noise = torch.randint(0, 255, (64, 64, 3), dtype=torch.uint8).numpy()
        Image.fromarray(noise).save(images / f'{number}.png')
    given = dict(calibration=str(images), images=3, input_shape=SHAPE, **FAST)
    task = build_task(FileOptions(
        config=tmp_path / 'dense.py', checkpoint=tmp_path / 'dense.pth', target='60%',
        scope='model', out=tmp_path / 'slim', **given))
    files = compress_files(task, task.options, task.folder)
    assert set(files.parts) == {'backbone', 'decode_head'} and not files.notes
    assert sum(slim for _, slim in files.parts.values()) == files.structure.macs['subnet']
    written = json.loads((tmp_path / 'slim/structure.json').read_text())
    assert written['backbone']['type'] == 'mmkcr.Searchable'
    assert any(name.startswith('decode_head.') for name in written['sites'])
    again = load_config(tmp_path / 'slim/config.py')
    assert again.load_from.endswith('subnet.pth')
    model = build_model(again)
    load_weights(model, tmp_path / 'slim/subnet.pth')
    assert count_macs(model, SHAPE) == written['macs']['subnet']
    for part in ('macs', 'params'):  # compared wherever it is built, as by runners of `test`
        counts = {key: written[part][key] + 1000 for key in ('dense', 'subnet')}
        edited = dict(written, **{part: dict(written[part], **counts)})
        with pytest.raises(ValueError, match='as its structure says, found one of'):
            MODELS.build(dict(again.model, structure=edited))
    dense = dense_config(again)
    assert count_macs(build_model(dense), SHAPE) == written['macs']['dense']
    set_structure(dense, str(tmp_path / 'slim/structure.json'))
    assert count_macs(build_model(dense), SHAPE) == written['macs']['subnet']
    with pytest.raises(ValueError, match='expected a checkpoint of the'):
        load_weights(model, tmp_path / 'dense.pth')
    distil_files(task, tmp_path / 'slim', 2)
    taught = json.loads((tmp_path / 'slim/structure.json').read_text())['provenance']['distil']
    assert taught['steps'] == 2 and taught['after'] <= taught['before']
    assert not (tmp_path / 'slim/.distil').exists()
    load_weights(model, tmp_path / 'slim/subnet.pth')
    # it is no dense model, of which more could be cut
    with pytest.raises(ValueError, match='expected a dense model to compress, found a subnet'):
        task = build_task(FileOptions(
            config=tmp_path / 'slim/config.py', checkpoint=tmp_path / 'slim/subnet.pth',
            target='80%', out=tmp_path / 'again', **given))
        compress_files(task, task.options, task.folder)
    with pytest.raises(ValueError, match='expected the config of a dense model'):
        init_config(tmp_path / 'slim/config.py', 'kcr')
    with pytest.raises(ValueError, match="expected a method of .* found 'kcr' and 'tune'"):
        init_config(tmp_path / 'slim/config.py', 'kcr', 'tune')


def test_a_head_without_an_adapter_is_named():
    config = config_of('upernet')
    head = {key: config.model.decode_head[key] for key in ('num_classes', 'channels')}
    config.model.decode_head = dict(head, type='FCNHead', in_channels=96, in_index=1,
                                    align_corners=False)
    model = build_model(config)
    with pytest.raises(ValueError, match=r'a neck or head with an adapter .*found .*`FCNHead`'):
        slim(model, 0.8, batches(model, 2))
    with pytest.raises(ValueError, match="expected `scope` of .*, found 'all'"):
        compress(model, torch.rand(2, 3, 64, 64), 0.8, scope='all')


def test_an_unreachable_target_gives_the_range_and_the_parts_without_sites():
    model = build('upernet')
    parts = count_parts(model, SHAPE)
    share = parts['backbone'] / sum(parts.values())
    found, heads = batches(model, 2), [dict(kind='channels', where=r'^decode_head\.')]
    for shape in (SHAPE, None):  # without one it is the size of the images
        with pytest.raises(ValueError, match='within the reachable .*; nothing can be cut in '
                           f'`backbone`, {share:.0%} of the MACs'):
            compress(model, found, 0.1, heads, shape, scope='model', **FAST)
    with pytest.raises(ValueError, match='within the reachable .* of the dense network.$'):
        slim(model, 0.01, batches(model, 2))


def with_search(config, scope, sites):
    config.compression = dict(
        scope=scope, sites=sites, wrapper='mmkcr.SearchModel', input_shape=SHAPE,
        gates=dict(type='mmkcr.GumbelChannelGate', min_size=1), price=dict(type='mmkcr.MacsPrice'))
    config.train_cfg = dict(type='IterBasedTrainLoop', max_iters=2)
    return config


@pytest.mark.parametrize('scope', ['backbone', 'model'])
def test_the_models_own_preprocessor_stays(scope):
    """As in MMEngine, one within `model` goes before that of the run."""
    config = config_of('upernet')
    own = dict(config.get('data_preprocessor') or config.model.data_preprocessor, mean=[1., 2., 3.])
    config.data_preprocessor, config.model.data_preprocessor = dict(own, mean=[0., 0., 0.]), own
    model = build_model(expand_compression(with_search(config, scope, ['mlp_hidden'])))
    assert model.data_preprocessor.mean.flatten().tolist() == [1., 2., 3.]


def test_a_search_on_the_whole_model_and_its_slimming():
    """By the `compression` of a config: gates in the head get gradients, and the budget is met."""
    config = with_search(config_of('upernet'), 'model', ['channels', 'mlp_hidden'])
    model = build_model(expand_compression(config))
    model.train()
    batch = batches(model, 1)[0]
    sample = SegDataSample(gt_sem_seg=PixelData(data=torch.zeros(1, 64, 64, dtype=torch.int64)))
    losses = model(batch['inputs'], [sample, sample], mode='loss')
    model.parse_losses(losses)[0].backward()
    gates = {name: gate for name, gate in model.gates().items() if name.startswith('decode_head.')}
    assert len(gates) == 6
    assert all(parameter.grad.abs().sum() > 0 for gate in gates.values()
               for parameter in gate.parameters())
    with torch.no_grad():
        for gate in model.gates().values():
            for parameter in gate.parameters():
                parameter.normal_()
    subnet, structure = slim_supernet(model, '60%', input_shape=SHAPE)
    assert structure.macs['subnet'] == count_macs(subnet, SHAPE) <= 0.6 * structure.macs['dense']
    assert structure.macs['part'] == 'model' and structure.backbone['type'] == 'mmkcr.Searchable'
    with pytest.raises(ValueError, match="`sites` in `compression` with `scope='model'`, found No"):
        config.compression.sites = None
        expand_compression(config)
