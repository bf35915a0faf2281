"""The hand-over: a classifier's backbone starts a dense model, whole or not at all."""

from pathlib import Path

import pytest
import torch
from mmengine.runner import save_checkpoint
from torch import nn

from mmkcr.apis import slim
from mmkcr.engine.build import build_model, load_config
from mmkcr.methods.named import KCRSwinTransformer
from mmkcr.models.backbone_loading import split_pretrained
from mmkcr.models.loading import load_start, load_task
from mmkcr.models.tasks import find_task
from mmkcr.registry import MODELS

CONFIGS = Path(__file__).parents[2] / 'configs'
GATES = dict(type='mmkcr.GumbelChannelGate', min_size=4)
SWIN = dict(arch=dict(embed_dims=12, depths=[2, 2], num_heads=[2, 2]), img_size=32, window_size=4,
            patch_size=4, use_abs_pos_embed=True)
DENSE_TASK = dict(SWIN, out_indices=(0, 1), pad_small_map=True)


def randomised(**kwargs):
    model = KCRSwinTransformer(**kwargs)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


@pytest.fixture(scope='module')
def trained():
    """Structure, and state_dict of a classifier around the subnet with a head and buffers."""
    torch.manual_seed(0)
    backbone, structure = slim(randomised(**SWIN, out_indices=(1, ), gates=GATES), 0.8, 1,
                               (3, 32, 32))
    state = {f'backbone.{key}': value for key, value in backbone.state_dict().items()}
    return structure, dict(state, **{'head.fc.weight': torch.ones(3, 24),
                                     'regularizers.kcr.basis': torch.eye(24)})


@pytest.fixture(scope='module')
def checkpoint(trained, tmp_path_factory):
    path = str(tmp_path_factory.mktemp('classifier') / 'epoch_3.pth')
    save_checkpoint(dict(state_dict=trained[1], meta=dict(epoch=3)), path)
    return path


def start(checkpoint, prefix=None, **kwargs):
    init_cfg = dict(type='Pretrained', checkpoint=checkpoint)
    model = KCRSwinTransformer(**DENSE_TASK, **kwargs, init_cfg=dict(
        init_cfg, **({} if prefix is None else dict(prefix=prefix))))
    model.init_weights()
    return model


@pytest.mark.parametrize('prefix', [None, 'backbone.', 'backbone'])
def test_every_entry_arrives_and_new_norms_are_new(trained, checkpoint, prefix):
    structure, state = trained
    found = start(checkpoint, prefix, structure=structure).state_dict()
    arrived = {key for key in found if f'backbone.{key}' in state}
    assert all(torch.equal(found[key], state[f'backbone.{key}']) for key in arrived)
    assert set(found) - arrived == {'norm0.weight', 'norm0.bias'}
    assert len(arrived) == len(state) - 2
    assert torch.equal(found['norm0.weight'], torch.ones(12))


def test_initial_weights_that_are_no_numbers(trained, tmp_path):
    structure, state = trained
    key = 'backbone.stages.0.blocks.1.ffn.layers.1.weight'
    wrong = {**state, key: state[key].clone()}
    wrong[key][0, 0] = float('inf')
    torch.save(dict(state_dict=wrong), tmp_path / 'wrong.pth')
    with pytest.raises(ValueError, match='finite weights in .*wrong.pth.*found .* in `.*1.ffn'):
        start(str(tmp_path / 'wrong.pth'), structure=structure)


def test_a_bare_backbone_and_a_supernet(trained, tmp_path):
    dense = randomised(**SWIN, out_indices=(1, ))
    torch.save(dense.state_dict(), tmp_path / 'dense.pth')
    for kwargs in ({}, dict(gates=GATES)):
        model = start(str(tmp_path / 'dense.pth'), **kwargs)
        for key, value in dense.state_dict().items():
            assert torch.equal(model.state_dict()[key], value)
        assert all((gate.alpha == gate.alpha[0]).all() for gate in model.gates().values())


@pytest.mark.parametrize('key', ['patch_embed.projection.weight',
                                 'stages.1.blocks.1.ffn.layers.1.bias'])
@pytest.mark.parametrize('kind', ['missing', 'unexpected', 'mis-shaped'])
def test_one_wrong_entry_is_named_and_nothing_is_loaded(trained, tmp_path, key, kind):
    structure, state = trained
    wrong, key = dict(state), f'backbone.{key}'
    if kind == 'unexpected':
        wrong[f'{key}_of_another'] = wrong[key]
    elif kind == 'mis-shaped':
        wrong[key] = torch.zeros(*wrong[key].shape, 2)
    else:
        del wrong[key]
    path = str(tmp_path / 'wrong.pth')
    torch.save(dict(state_dict=wrong), path)
    model = KCRSwinTransformer(**DENSE_TASK, structure=structure,
                               init_cfg=dict(type='Pretrained', checkpoint=path))
    before = {k: v.clone() for k, v in model.state_dict().items() if 'kept' in k or 'index' in k}
    with pytest.raises(ValueError, match=f'1 {kind} .*{key.removeprefix("backbone.")}') as error:
        model.init_weights()
    assert f'`{path}`' in str(error.value)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in before.items())


def test_keys_of_another_network_are_counted_beside_those_of_other_shapes():
    """Torch reports other shapes alone."""
    def classifier(channels, **backbone):
        return MODELS.build(dict(
            type='mmpretrain.ImageClassifier', backbone=backbone, head=dict(
                type='mmpretrain.LinearClsHead', num_classes=3, in_channels=channels)))

    swin = classifier(24, type='mmpretrain.SwinTransformer', **SWIN, out_indices=(1, ))
    resnet = classifier(512, type='mmpretrain.ResNet', depth=18)
    state = swin.state_dict()
    missing, surplus = (sum(not key.startswith('head.') and 'num_batches' not in key
                            for key in keys) for keys in (resnet.state_dict(), state))
    with pytest.raises(ValueError, match=f'found {missing} missing .*, {surplus} unexpected .* and '
                       r'1 mis-shaped \(head.fc.weight'):
        load_task(resnet, state, 'swin.pth')


def test_all_wrong_keys_are_listed_for_a_debugger(checkpoint):
    with pytest.raises(ValueError, match='the dense .*unexpected .*mis-shaped') as error:
        start(checkpoint)
    notes = '\n'.join(error.value.__notes__)
    assert all(f'stages.{s}.blocks.{b}.ffn.layers.0.0.weight' in notes
               for s in (0, 1) for b in (0, 1))


def test_refusals(trained, checkpoint, tmp_path):
    structure, state = trained
    dense = randomised(**SWIN, out_indices=(1, ))
    torch.save(dict(state_dict={f'backbone.{k}': v for k, v in dense.state_dict().items()}),
               tmp_path / 'dense.pth')
    (tmp_path / 'text.pth').write_text('no checkpoint')
    torch.save(dict(state_dict={'head.w': torch.ones(1)}), tmp_path / 'head.pth')
    other = dict(structure.to_dict(), backbone=dict(type='KCRVisionTransformer'))
    for arguments, error, message in [
        (dict(checkpoint=str(tmp_path / 'dense.pth'), structure=structure), ValueError,
         'of the subnet `KCRSwinTransformer`, .*as of the dense network: 0 missing, .*mis-shaped'),
        (dict(checkpoint='no/such.pth'), FileNotFoundError, '`no/such.pth`, found none'),
        (dict(checkpoint=str(tmp_path / 'text.pth')), ValueError, 'cannot be read'),
        (dict(checkpoint=str(tmp_path / 'head.pth'), prefix='backbone.'), ValueError,
         'keys that start with `backbone.` .*found head.w'),
        (dict(checkpoint=checkpoint, structure=other), ValueError,
         'structure for `KCRSwinTransformer`, found one for `KCRVisionTransformer`'),
    ]:
        with pytest.raises(error, match=message):
            start(**arguments)


def test_a_model_for_test_time_augmentation_on_several_devices():
    """As `--tta` of several processes builds it: a wrapper in a wrapper."""
    from mmpretrain.models import AverageClsScoreTTA
    task = MODELS.build(dict(type='mmpretrain.ImageClassifier',
                             backbone=dict(type='mmpretrain.LeNet5')))
    state = {name: torch.ones_like(value) for name, value in task.state_dict().items()}
    load_task(nn.DataParallel(AverageClsScoreTTA(task)), state, 'a.pth')
    assert all((value == 1).all() for value in task.state_dict().values())


def test_other_initialisers_stay():
    truncated = dict(type='TruncNormal', layer='Linear', std=.02)
    given = dict(checkpoint='x', prefix='b')
    assert split_pretrained([truncated, dict(given, type='Pretrained')]) == (given, [truncated])
    assert split_pretrained(None) == (None, [])
    assert split_pretrained(truncated) == (None, [truncated])


def test_buffers_that_the_host_takes_out_of_a_checkpoint_are_not_missed():
    """Swin V2 of mmpretrain computes its tables anew, and drops those that it is given."""
    def build():
        return MODELS.build(dict(
            type='mmpretrain.ImageClassifier',
            backbone=dict(type='mmpretrain.SwinTransformerV2', img_size=32, window_size=[4, 4],
                          arch=dict(embed_dims=12, depths=[1, 1], num_heads=[2, 2],
                                    extra_norm_every_n_blocks=0),
                          pretrained_window_sizes=[0, 0], out_indices=(1, )),
            head=dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=24)))

    saved, model = build(), build()
    state = saved.state_dict()
    assert any('relative_coords_table' in name for name in state)
    load_task(model, state, 'swin.pth')
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    with pytest.raises(ValueError, match=r'found 1 missing \(head.fc.bias\)'):
        load_task(model, {key: value for key, value in state.items() if key != 'head.fc.bias'}, 'x')


def test_a_checkpoint_of_another_model_is_refused_by_what_it_has():
    def build(**kwargs):
        return MODELS.build(dict(
            type='mmpretrain.ImageClassifier', backbone=dict(
                type='mmpretrain.VisionTransformer', img_size=32, patch_size=8, arch=dict(
                    embed_dims=8, num_layers=1, num_heads=2, feedforward_channels=8), **kwargs)))

    model = build()
    bare = {name.removeprefix('backbone.'): value for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=r'18 missing \(backbone.cls.*18 unexpected \(cls_token'):
        load_task(model, bare, 'bare.pth')
    # mmpretrain's own check of the position table is an assertion
    small = build()
    table = small.state_dict() | {'backbone.pos_embed': torch.zeros(1, 12, 8)}
    with pytest.raises(ValueError, match='expected a checkpoint of the ImageClassifier, found '
                       '`t.pth` of another .The length of `pos_embed`'):
        load_task(model, table, 't.pth')


@pytest.mark.parametrize('config', [
    'ofb/segmentation/ofb-setr-naive_vit-mini_search_1xb8_digit-scenes.py',
    'ofb/segmentation/ofb-upernet_swin-mini_search_1xb8_digit-scenes.py',
    'ofb/detection/ofb-mask-rcnn_swin-mini_search_1xb8_digit-scenes.py',
    'ofb/digits/ofb-search_vit-mini_1xb64_digits.py',
    'dwconv/segmentation/dwconv-fcn_vit-octo_search_1xb8_digit-scenes.py'])
def test_searches_start_from_their_dense_networks(config):
    """However many entries the gates have: a dense file has none of them."""
    model = build_model(load_config(CONFIGS / config))
    task = find_task(model)
    dense = {key: torch.full_like(value, 3) for key, value in task.state_dict().items()
             if '.gate.' not in key}
    load_start(model, dense, 'dense.pth')
    assert all((value == 3).all() for key, value in task.state_dict().items() if key in dense)
