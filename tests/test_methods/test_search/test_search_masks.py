"""Masks inside the search wrapper: noise, temperature and optimizer parts."""

from types import SimpleNamespace

import pytest
import torch

from mmkcr.methods.dcs.qk_mask import QKMask
from mmkcr.methods.search.schedules import TemperatureDecayHook
from mmkcr.registry import MODELS


def search_model(**kwargs):
    arch = dict(widths=[8, 8, 16], depths=[1, 1, 1], head_dim=8)
    backbone = dict(type='mmkcr.DCSEfficientViT', arch=arch,
                    gates=dict(type='mmkcr.GumbelChannelGate', min_size=2), **kwargs)
    head = dict(type='mmkcr.EfficientViTClsHead', num_classes=3, in_channels=16, widths=(8, 8))
    torch.manual_seed(0)
    return MODELS.build(dict(
        type='mmkcr.SearchModel', price=dict(type='mmkcr.MacsPrice', input_shape=(3, 32, 32)),
        architecture=dict(type='mmpretrain.ImageClassifier', backbone=backbone, head=head)))


def masks_of(model):
    return [module for module in model.modules() if isinstance(module, QKMask)]


def loss(model, images):
    from mmpretrain.structures import DataSample
    samples = [DataSample().set_gt_label(i % 3) for i in range(len(images))]
    return model(images, samples, mode='loss')


def test_a_step_draws_the_masks_noise_and_a_resumed_one_the_same():
    model, x = search_model().train(), torch.randn(4, 3, 32, 32)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    loss(model, x)
    seeds = [mask._seed for mask in masks_of(model)]
    assert len(set(seeds)) == len(seeds) == 2
    loss(model, x)
    later = [mask._seed for mask in masks_of(model)]
    assert not set(seeds) & set(later)
    resumed = search_model().train()
    resumed.load_state_dict(state)
    loss(resumed, x)
    assert [mask._seed for mask in masks_of(resumed)] == seeds
    loss(resumed, x)
    assert [mask._seed for mask in masks_of(resumed)] == later


def test_gates_learn_in_frozen_stages():
    """A host freezes whole stages when the mode is set; its gates would keep their start."""
    swin = dict(type='mmpretrain.SwinTransformer', img_size=64, window_size=2, frozen_stages=2,
                arch=dict(embed_dims=8, depths=[1] * 4, num_heads=[1] * 4))
    host = dict(type='mmkcr.Searchable', backbone=swin, sites=['mlp_hidden'],
                gates=dict(type='mmkcr.GumbelChannelGate'))
    head = dict(type='mmpretrain.LinearClsHead', num_classes=3, in_channels=64)
    model = MODELS.build(dict(
        type='mmkcr.SearchModel', architecture=dict(
            type='mmpretrain.ImageClassifier', backbone=host, head=head,
            neck=dict(type='mmpretrain.GlobalAveragePooling'))))
    frozen = [gate for name, gate in model.gates().items() if 'stages.0' in name]
    for _ in range(2):
        model.train()
        model.zero_grad()
        sum(value for key, value in loss(model, torch.randn(2, 3, 64, 64)).items()
            if 'loss' in key).backward()
        assert frozen and all(gate.training for gate in frozen)
        assert all(p.grad.abs().any() for p in model.gate_parameters())
    assert not any(p.requires_grad for name, p in model.named_parameters()
                   if 'stages.0' in name and 'gate' not in name)
    frozen[0].requires_grad_(False)  # as a gate that was folded into the weights
    assert not any(p.requires_grad for p in model.train().gates()[
        next(iter(model.gates()))].parameters())


def test_masks_are_weights_and_have_the_temperature():
    model = search_model()
    gates = {id(p) for p in model.gate_parameters()}
    assert not gates & {id(p) for mask in masks_of(model) for p in mask.parameters()}
    hub = SimpleNamespace(update_scalar=lambda *_: None)
    TemperatureDecayHook(0.25, by_epoch=False).before_step(
        SimpleNamespace(model=model, message_hub=hub), 0)
    assert all(mask.temperature == 0.25 for mask in masks_of(model))


@pytest.mark.parametrize('cost', ['macs', 'paper'])
def test_price_of_both_costs(cost):
    model = search_model(local=True)
    model.price.cost = cost
    losses = loss(model.train(), torch.randn(2, 3, 32, 32))
    losses['loss_price'].backward()
    assert all(gate.alpha.grad is not None and gate.alpha.grad.any()
               for gate in model.gates().values())
