"""Sizes without a search: one keep ratio everywhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.config import Config
from torch import nn

from lab.model_zoo import model_size, uniform_subnet, uninitialized
from mmkcr.apis import count_macs

SHAPE = (3, 32, 32)


def config():
    arch = dict(embed_dims=64, num_layers=3, num_heads=4, feedforward_channels=128)
    backbone = dict(type='mmkcr.KCRVisionTransformer', arch=arch, img_size=32, patch_size=8)
    head = dict(type='VisionTransformerClsHead', num_classes=10, in_channels=64)
    return Config(dict(default_scope='mmpretrain', model=dict(
        type='ImageClassifier', backbone=backbone, head=head)))


@settings(max_examples=6, deadline=None)
@given(st.floats(0.7, 1.0))
def test_every_block_keeps_the_same_share(target):
    model = uniform_subnet(config(), target)
    kept = list(model.backbone.structure.sizes().values())
    assert len(kept) == 3 and max(kept) - min(kept) <= 8 and not any(size % 8 for size in kept)
    dense = model_size(config()).macs
    step = 3 * 8 * 2 * 17 * 128  # MACs of eight channels of every block
    assert dense * target - step - 1 <= count_macs(model, SHAPE) <= dense * target + 1


def test_attention_products_are_counted_apart():
    size = model_size(config())
    assert size.attention == 3 * 2 * 17**2 * 64 and size.keep == 1
    assert model_size(config(), 0.8).attention == size.attention


def test_search_and_subnet_configs_count_as_their_dense_model():
    wrapped, dense = config(), model_size(config())
    wrapped.model = dict(type='mmkcr.SearchModel', architecture=wrapped.model)
    wrapped.model.architecture.backbone.gates = dict(type='mmkcr.GumbelChannelGate')
    assert model_size(wrapped) == dense
    subnet = config()
    subnet.model.backbone.structure = 'not/there.json'
    assert model_size(subnet) == dense and subnet.model.backbone.structure == 'not/there.json'


def test_unreachable_target():
    with pytest.raises(ValueError, match='reachable'):
        model_size(config(), 0.01)


def test_initialisation_is_skipped_inside_only():
    weight = torch.full((3, 3), 7.)
    with uninitialized():
        for function in (nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_):
            assert function(weight) is weight and (weight == 7).all()
            assert function(tensor=weight) is weight and (weight == 7).all()
    assert (nn.init.uniform_(weight) < 1).all()
