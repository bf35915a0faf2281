"""Optimizers of a search: groups of gates and importances, and rates by layer as the host's."""

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from mmkcr.engine.build import build_model, load_config
from mmkcr.engine.compressed_config import expand_compression

SMALL = dict(
    mae=('mmpretrain::mae/benchmarks/vit-base-p16_8xb128-coslr-100e_in1k.py', {
        'model.backbone.img_size': 32, 'model.head.in_channels': 32,
        'model.backbone.init_cfg': None, 'model.backbone.arch': dict(
            _delete_=True, embed_dims=32, num_layers=3, num_heads=2, feedforward_channels=64)}),
    convnext=('mmseg::convnext/convnext-tiny_upernet_8xb2-amp-160k_ade20k-512x512.py', {
        'model.backbone.init_cfg': None, 'model.backbone.arch': dict(
            _delete_=True, depths=[1, 1, 3, 1], channels=[8, 16, 32, 64]),
        'model.decode_head.in_channels': [8, 16, 32, 64], 'model.decode_head.channels': 8,
        'model.auxiliary_head.in_channels': 32, 'model.auxiliary_head.channels': 8}))


@pytest.fixture
def model():
    return build_model(load_config('configs/ofb/digits/ofb-search_vit-mini_1xb64_digits.py'))


def groups(model, **architecture):
    config = dict(optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.99)))
    if architecture:
        config['architecture'] = architecture
    constructor = OPTIM_WRAPPER_CONSTRUCTORS.build(dict(
        type='mmkcr.JointOptimWrapperConstructor', optim_wrapper_cfg=config))
    found = constructor(model).optimizer.param_groups
    held = [id(p) for group in found for p in group['params']]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    return found


def test_gates_have_a_group_of_their_own(model):
    *_, gates = groups(model)
    assert {id(p) for p in gates['params']} == {id(p) for p in model.gate_parameters()}
    assert gates['betas'] == (0.5, 0.999) and gates['weight_decay'] == 0
    assert groups(model, lr=0.1)[-1]['lr'] == 0.1


def test_importance_apart_as_in_the_public_code(model):
    *_, alpha, importance = groups(model, weight_decay=1e-3,
                                   importance=dict(betas=(0.9, 0.999), weight_decay=0.))
    gates = model.gates().values()
    assert {id(p) for p in alpha['params']} == {id(gate.alpha) for gate in gates}
    assert {id(p) for p in importance['params']} == {id(gate.importance) for gate in gates}
    assert alpha['betas'] == (0.5, 0.999) and alpha['weight_decay'] == 1e-3
    assert importance['betas'] == (0.9, 0.999) and importance['weight_decay'] == 0


def dense(name):
    path, options = SMALL[name]
    config = load_config(path, options)
    config.optim_wrapper.update(type='OptimWrapper')  # for the CPU
    config.optim_wrapper.pop('loss_scale', None)
    return config


def rates(model, config):
    """Factors on the rate, and decays, by the name in the task model."""
    names = {id(parameter): name.removeprefix('architecture.')
             for name, parameter in model.named_parameters()}
    return {names[id(parameter)]: (group['lr'], group['weight_decay'])
            for group in build_optim_wrapper(model, config).optimizer.param_groups
            for parameter in group['params']}


def test_gates_learn_as_their_method_says():
    """Hosts' constructors know no `lr_mult`, and would slow down the gates of early layers."""
    config = dense('mae')
    config.compression = dict(
        sites=['head_operator'], gates=dict(type='mmkcr.RelaxedTopKGate', count=1),
        wrapper='mmkcr.SearchModel', price=dict(type='mmkcr.MacsPrice', weight=0.),
        paramwise={'gate.alpha': dict(lr_mult=200., decay_mult=0.)})
    config = expand_compression(config)
    found = rates(build_model(config), config.optim_wrapper)
    base = config.optim_wrapper.optimizer.lr
    gates = [setting for name, setting in found.items() if name.endswith('gate.alpha')]
    assert gates == [(200 * base, 0.)] * 3
    config.optim_wrapper.update(constructor='mmkcr.LayerDecayOptimWrapperConstructor')
    del config.optim_wrapper['of_task']
    found = rates(build_model(config), config.optim_wrapper)
    assert [setting for name, setting in found.items() if name.endswith('gate.alpha')] == gates


@pytest.mark.parametrize('name', SMALL)
def test_rates_by_layer(name):
    config = dense(name)
    wanted = rates(build_model(config), config.optim_wrapper)
    assert len({rate for rate, _ in wanted.values()}) > 3
    config.compression = dict(sites=['mlp_hidden'], wrapper='mmkcr.RegularizedModel')
    config = expand_compression(config)
    model = build_model(config)
    model.extra = nn.Parameter(torch.zeros(3))  # as a regulariser may have
    found = rates(model, config.optim_wrapper)
    assert {**wanted, 'extra': found['extra']} == found
    assert found['extra'][0] == config.optim_wrapper.optimizer.lr
