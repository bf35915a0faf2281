"""FeatureTap: pooling, paths, gradients, and that nothing stays behind."""

import pytest
import torch
from torch import nn

from mmkcr.models.feature_tap import FeatureTap, find_layer, pool_features


class Wrapper(nn.Module):
    """As a search wrapper: the task model is its ``architecture``."""

    def __init__(self, architecture):
        super().__init__()
        self.architecture = architecture

    def forward(self, x):
        return self.architecture(x)


def task():
    model = nn.Sequential()
    model.add_module('backbone', nn.Linear(4, 6))
    model.add_module('head', nn.Linear(6, 3))
    return model


def test_pooling_of_every_layout():
    x = torch.randn(2, 5)
    tokens, maps = torch.randn(2, 7, 5), torch.randn(2, 5, 3, 4)
    assert pool_features(x) is x
    assert torch.equal(pool_features(tokens), tokens.mean(1))
    assert torch.equal(pool_features(maps), maps.mean((2, 3)))
    assert torch.equal(pool_features((tokens, maps)), maps.mean((2, 3)))
    assert pool_features((maps, [maps, x])) is x  # patch tokens beside a class token


@pytest.mark.parametrize('output, found', [(None, 'NoneType'), ((), 'tuple'), ({}, 'dict'),
                                           (torch.zeros(3), r'\(3,\)')])
def test_other_outputs_are_refused(output, found):
    with pytest.raises(TypeError, match=f'found `{found}`'):
        pool_features(output)


def test_output_input_and_gradient():
    model, x = task(), torch.randn(3, 4)
    with FeatureTap(model) as output, FeatureTap(model, 'head:input') as given:
        model(x)
    assert torch.equal(output.features, model.backbone(x))
    assert output.features is given.features
    output.features.sum().backward()
    assert model.backbone.weight.grad is not None and model.head.weight.grad is None


def test_the_same_layer_through_wrappers():
    model = task()
    assert find_layer(Wrapper(model), 'backbone') is model.backbone
    assert find_layer(Wrapper(Wrapper(model)), 'head') is model.head
    assert find_layer(Wrapper(model), 'architecture.head') is model.head


def test_nothing_is_left_behind_even_after_an_error():
    model = task()
    with pytest.raises(RuntimeError, match='shape|size'), FeatureTap(model):
        model(torch.zeros(1, 99))
    assert not model.backbone._forward_hooks


def test_bad_use_is_one_sentence():
    with pytest.raises(ValueError, match='children backbone, head.*found `neck`'):
        FeatureTap(Wrapper(task()), 'neck')
    with pytest.raises(ValueError, match="':input', found `head:output`"):
        FeatureTap(task(), 'head:output')
    tap = FeatureTap(task())
    with pytest.raises(RuntimeError, match='`backbone` has not run'):
        assert tap.features
