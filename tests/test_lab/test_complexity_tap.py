"""KC while a model runs: that of the metric's mathematics, in one pass over batches."""

import pytest
import torch
from torch import nn

from lab.complexity_tap import ComplexityTap
from mmkcr.functional.kernel import kernel_complexity, moment_of, spectrum, tails


def test_it_is_that_of_all_features_at_once():
    torch.manual_seed(0)
    layer, inputs = nn.Conv2d(3, 6, 1), torch.randn(11, 3, 4, 4)
    with torch.no_grad():
        features = layer(inputs).mean((2, 3))
    with torch.no_grad(), ComplexityTap(layer) as tap:
        for batch in inputs.split(3):
            layer(batch)
    found = tap.values()
    assert found['kc'] == pytest.approx(
        kernel_complexity(tails(spectrum(moment_of(features))[0]), 11)[0])
    assert found['kc'] <= found['a_kc']  # landmarks give an upper bound


def test_what_cannot_be_pooled_is_left_out():
    layer = nn.Identity()
    with ComplexityTap(layer) as tap:
        layer(dict(scores=torch.ones(2)))
    assert tap.values() == {}
