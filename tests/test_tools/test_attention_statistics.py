"""Entropy and rank of attention against NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.attention_tap import Attention
from tools.analysis_tools.attention import AttentionStatistics, row_entropy


def attention(seed, b=3, h=2, n=5, d=2):
    generator = torch.Generator().manual_seed(seed)
    # whole numbers, whose products are exact: a rank of rounded ones depends on the CPU
    q, k = torch.randint(-3, 4, (2, b, h, n, d), generator=generator).float()
    product = q @ k.transpose(-2, -1)
    return Attention(product.softmax(-1), product, d)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 4),
       st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_values_equal_the_naive_ones(b, h, n, d, batches):
    statistics, batches = AttentionStatistics(7), [attention(i, b, h, n, d) for i in range(batches)]
    for batch in batches:
        statistics.add(batch)
    values = statistics.values()
    weights = torch.cat([batch.weights for batch in batches]).double().numpy()
    entropy = -(weights * np.log(weights)).sum(-1)
    products = torch.cat([batch.product for batch in batches]).numpy()
    for head in range(h):
        assert values['entropy'][head] == pytest.approx(entropy[:, head].mean(), abs=1e-5)
        assert values['rank'][head] == pytest.approx(
            np.mean([np.linalg.matrix_rank(product.astype(float), tol=1e-6)
                     for product in products[:, head]]))
        assert sum(values['histogram'][head]) == pytest.approx(1.)
    assert (values['positions'], values['width']) == (n, d)


def test_entropy_of_known_rows():
    rows = torch.tensor([[1., 0., 0., 0.], [0.25] * 4, [0.5, 0.5, 0., 0.], [0.] * 4, [2.] * 4])
    expected = [0., np.log(4), np.log(2), np.log(4), np.log(4)]
    assert np.allclose(row_entropy(rows).numpy(), expected)


def test_images_of_another_size_are_refused():
    statistics = AttentionStatistics()
    statistics.add(attention(0))
    with pytest.raises(ValueError, match='attention over `6` positions after 5'):
        statistics.add(attention(0, n=6))
