"""Rates by layer: mmpretrain's, in every task, in every state of a backbone."""

import mmpretrain.models  # noqa: F401
import mmseg.models  # noqa: F401
import pytest
from mmengine.optim import build_optim_wrapper
from mmpretrain.engine.optimizers import LearningRateDecayOptimWrapperConstructor

import mmkcr.engine.registered  # noqa: F401
from mmkcr.apis import slim
from mmkcr.registry import MODELS

RATE = 0.7
SWIN = dict(type='mmkcr.KCRSwinTransformer', img_size=32, patch_size=4, window_size=4,
            arch=dict(embed_dims=8, depths=[2, 1], num_heads=[1, 2]), out_indices=(0, 1))
VIT = dict(type='mmkcr.KCRVisionTransformer', img_size=32, patch_size=8, arch=dict(
    embed_dims=8, num_layers=3, num_heads=2, feedforward_channels=16))
GATES = dict(type='mmkcr.GumbelChannelGate', min_size=1)


def classifier(backbone):
    return dict(type='mmpretrain.ImageClassifier', backbone=backbone,
                head=dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=8))


def segmentor(backbone):
    return dict(type='mmseg.EncoderDecoder', backbone=backbone,
                data_preprocessor=dict(type='mmseg.SegDataPreProcessor'),
                decode_head=dict(type='mmseg.FCNHead', in_channels=16, channels=8, num_classes=3,
                                 num_convs=1, in_index=1))


def wrapper_of(model, constructor='mmkcr.LayerDecayOptimWrapperConstructor', **paramwise):
    return build_optim_wrapper(model, dict(
        optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05), constructor=constructor,
        paramwise_cfg=dict(layer_decay_rate=RATE, **paramwise)))


def settings(model, wrapper):
    """(lr, weight decay) of every parameter by name."""
    names = {id(param): name for name, param in model.named_parameters()}
    return {names[id(param)]: (pytest.approx(group['lr']), group['weight_decay'])
            for group in wrapper.optimizer.param_groups for param in group['params']}


@pytest.mark.parametrize('backbone', [SWIN, VIT, dict(VIT, pre_norm=False, final_norm=False)])
def test_equals_mmpretrain(backbone):
    model = MODELS.build(classifier(backbone))
    wrapper = wrapper_of(model)
    ours = settings(model, wrapper)
    assert len(wrapper.optimizer.param_groups) <= 2 * 5  # decaying or not, by layer
    theirs = settings(model, LearningRateDecayOptimWrapperConstructor(
        dict(optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05)),
        dict(layer_decay_rate=RATE, norm_decay_mult=0., bias_decay_mult=0., flat_decay_mult=0.,
             custom_keys={key: dict(decay_mult=0.) for key in (
                 '.cls_token', '.pos_embed', 'relative_position_bias_table')}))(model))
    assert ours == theirs and len(ours) == len(dict(model.named_parameters()))
    assert len({lr.expected for lr, _ in ours.values()}) == 5  # stem, 3 blocks, the rest


@pytest.mark.parametrize('backbone', [SWIN, VIT])
def test_inside_another_task(backbone):
    """The backbone learns as in the classifier, what is around it at the full rate."""
    alone = MODELS.build(classifier(backbone))
    expected = settings(alone, wrapper_of(alone))
    model = MODELS.build(segmentor(backbone))
    found = settings(model, wrapper_of(model))
    assert found.keys() == dict(model.named_parameters()).keys()
    for name, (lr, decay) in found.items():
        if name.startswith('backbone.'):
            assert (lr.expected, decay) == expected[name]
        else:
            assert lr == 1e-3 and decay == (0.05 if model.get_parameter(name).ndim > 1 else 0)


@pytest.mark.parametrize('backbone', [SWIN, VIT])
def test_dense_supernet_and_subnet(backbone):
    """A layer's rate does not depend on the state; a search builds it for its weights alone."""
    dense = MODELS.build(segmentor(backbone))
    expected = settings(dense, wrapper_of(dense))
    gated = dict(backbone, gates=GATES)
    search = MODELS.build(dict(type='mmkcr.SearchModel', architecture=segmentor(gated)))
    part = dict(optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05))
    wrappers = build_optim_wrapper(search, dict(
        constructor='mmkcr.SearchOptimWrapperConstructor', architecture=part, weights=dict(
            part, constructor='mmkcr.LayerDecayOptimWrapperConstructor',
            paramwise_cfg=dict(layer_decay_rate=RATE))))
    found = settings(search, wrappers['weights'])
    assert {name.replace('architecture.', ''): values for name, values in found.items()} \
        == {name: (lr.expected, decay) for name, (lr, decay) in expected.items()}
    assert all(name.endswith('alpha') for name in settings(search, wrappers['architecture']))
    subnet, structure = slim(MODELS.build(segmentor(gated)), target_macs=0.9,
                             input_shape=(3, 32, 32), part='backbone', divisor=1)
    found = settings(subnet, wrapper_of(subnet))
    assert {name: (lr.expected, decay) for name, (lr, decay) in found.items()} == expected
    assert any(len(site.kept) < site.total for site in structure.sites.values())


def test_what_does_not_decay():
    swin = MODELS.build(dict(SWIN, use_abs_pos_embed=True))
    for model, tables in ((swin, {'absolute_pos_embed'}),
                          (MODELS.build(VIT), {'pos_embed', 'cls_token'})):
        found = settings(model, wrapper_of(model))
        shapes = {name: param.ndim for name, param in model.named_parameters()}
        decaying = {name for name, (_, decay) in found.items() if decay}
        assert decaying == {name for name, ndim in shapes.items()
                            if ndim > 1 and name.endswith('weight')}
        assert tables <= found.keys() - decaying
        for name in tables:  # tables lie at the stem, where mmpretrain has a Swin's at the head
            assert found[name][0] == 1e-3 * RATE**4


def test_settings_of_the_user_win():
    model = MODELS.build(classifier(VIT))
    plain = settings(model, wrapper_of(model))
    found = settings(model, wrapper_of(
        model, norm_decay_mult=1., table_decay_mult=0.5,
        custom_keys={'pos_embed': dict(lr_mult=20., decay_mult=1.)}))
    assert found['backbone.pos_embed'] == (20 * plain['backbone.pos_embed'][0].expected, 0.05)
    assert found['backbone.cls_token'][1] == 0.025
    assert found['backbone.ln1.weight'][1] == 0.05 and found['head.layers.fc.bias' if hasattr(
        model.head, 'layers') else 'head.fc.bias'][1] == 0.


@pytest.mark.parametrize(('optimizer', 'paramwise', 'message'), [
    (dict(type='SGD', lr=1.), {}, '`weight_decay` of the optimizer'),
    (dict(type='SGD', weight_decay=1.), {}, '`lr` of the optimizer'),
    (dict(type='SGD', lr=1., weight_decay=1.), dict(layer_decay_rate=1.5),
     r'within \(0, 1\], found `1.5`')])
def test_refusals(optimizer, paramwise, message):
    with pytest.raises(ValueError, match=message):
        build_optim_wrapper(MODELS.build(VIT), dict(
            optimizer=optimizer, constructor='mmkcr.LayerDecayOptimWrapperConstructor',
            paramwise_cfg=paramwise))


@pytest.mark.parametrize('backbone', [
    dict(type='mmkcr.EfficientViT', arch='b0'), dict(type='mmpretrain.ResNet', depth=18)])
def test_backbones_without_depths_are_refused(backbone):
    with pytest.raises(ValueError, match='expected a backbone with `get_layer_depth` .* found `'
                       + backbone['type'].split('.')[-1]):
        wrapper_of(MODELS.build(backbone))
