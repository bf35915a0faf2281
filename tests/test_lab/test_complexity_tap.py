"""KC while a model runs: that of the metric's mathematics, in one pass over batches."""

import pytest
import torch
from torch import nn

from lab.complexity_tap import ComplexityTap
from mmkcr.functional.kernel import kernel_complexity, moment_of, spectrum, tails


def test_it_is_that_of_all_features_at_once():
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(3, 6, 1), torch.randn(11, 3, 4, 4)
    with torch.no_grad(), ComplexityTap(layer) as tap:
        for batch in inputs.split(4):
            out = layer(batch)
        features = layer(inputs).mean((2, 3))
    assert out.shape[1] == 6
    with torch.no_grad(), ComplexityTap(layer) as tap:
        for batch in inputs.split(3):
            layer(batch)
    found = tap.values()
    assert found['kc'] == pytest.approx(
        kernel_complexity(tails(spectrum(moment_of(features))[0]), 11)[0])
    assert found['kc'] <= found['a_kc']  # landmarks give an upper bound


def test_features_of_low_rank_are_simple():
    torch.manual_seed(0)

    def of(features):
        layer = nn.Identity()
        with ComplexityTap(layer) as tap:
            layer(features)
        return tap.values()['kc']

    features = torch.randn(64, 8)
    assert of(features[:, :1] @ torch.randn(1, 8)) < of(features)


def test_what_cannot_be_pooled_is_left_out():
    layer = nn.Identity()
    with ComplexityTap(layer) as tap:
        layer(dict(scores=torch.ones(2)))
    assert tap.values() == {}
