"""The information bottleneck against naive NumPy: streaming sums, and facts of the paper."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.information import (
    InformationAccumulator,
    log_assignments,
    mutual_information,
)

SIZES = st.tuples(st.integers(1, 25), st.integers(1, 5), st.integers(1, 4), st.integers(1, 6))


def naive_phi(points, centroids, beta=1., normalize=False):
    """softmax of -beta |x - c|^2 by its definition, without log-softmax."""
    if normalize:
        points = points / np.linalg.norm(points, axis=1, keepdims=True)
    phi = np.exp(-beta * ((points[:, None] - centroids[None])**2).sum(-1))
    return phi / phi.sum(1, keepdims=True)


def naive_information(joint):
    total = 0.
    for a in range(joint.shape[0]):
        for b in range(joint.shape[1]):
            if joint[a, b] > 0:
                total += joint[a, b] * np.log(joint[a, b] / joint[a].sum() / joint[:, b].sum())
    return total


def naive_values(phi, phi_inputs, labels, classes, smoothing):
    """Everything by loops over samples, clusters and classes (equations 1 and 8, lemma F.1)."""
    n, clusters = phi.shape
    one_hot = np.eye(classes)[labels]
    q = (one_hot.T @ phi + smoothing)
    q = q / q.sum(1, keepdims=True)
    first = np.mean([sum(phi[i, a] * p * np.log(p) for a in range(clusters)
                         for p in phi_inputs[i]) for i in range(n)])
    second = -np.mean([sum(phi[i, a] * np.log(q[labels[i], a]) for a in range(clusters))
                       for i in range(n)])
    dropped = -np.mean([[(phi_inputs[i] * np.log(phi_inputs[j])).sum() for j in range(n)]
                        for i in range(n)])
    i_inputs = naive_information(phi.T @ phi_inputs / n)
    i_labels = naive_information(phi.T @ one_hot / n)
    return dict(n=n, i_inputs=i_inputs, i_labels=i_labels, ib=i_inputs - i_labels,
                ibb_printed=first + second, ibb=first + second + dropped), q


def draw(sizes, seed, spread=1.5):
    n, clusters, classes, width = sizes
    rng = np.random.default_rng(seed)
    points, inputs = rng.normal(size=(n, width)) * spread, rng.normal(size=(n, width)) * spread
    return (points, inputs, rng.integers(0, classes, n), rng.normal(size=(clusters, width)),
            rng.normal(size=(classes, width)))


@given(SIZES, st.integers(0, 9), st.floats(0.1, 2.), st.integers(1, 30), st.floats(1e-4, 1.))
@settings(max_examples=60, deadline=None)
def test_streaming_values_equal_the_naive_ones(sizes, seed, beta, batch, smoothing):
    """With the term that the theorem drops, which is not negative, the bound holds."""
    points, inputs, labels, centroids, input_centroids = draw(sizes, seed)
    classes = sizes[2]
    phi, phi_inputs = naive_phi(points, centroids, beta), naive_phi(inputs, input_centroids, beta)
    expected, q = naive_values(phi, phi_inputs, labels, classes, smoothing)
    sums = InformationAccumulator(sizes[1], classes, classes)
    tensors = [torch.from_numpy(array) for array in (points, labels, inputs)]
    for x, y, z in zip(*(tensor.split(batch) for tensor in tensors)):
        sums.add(log_assignments(x, torch.from_numpy(centroids), beta, False), y,
                 log_assignments(z, torch.from_numpy(input_centroids), beta, False))
    found = sums.values(smoothing=smoothing)
    assert found['ib'] <= found['ibb'] + 1e-9 and found['ibb_printed'] <= found['ibb'] + 1e-12
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-9), key
    assert np.allclose(sums.log_q(smoothing).exp().numpy(), q, atol=1e-12)


def test_fact_2_the_printed_right_side_is_no_bound():
    """One cluster of features: I is 0 and Q is 1, so the printed side is -H(phi of inputs) < 0."""
    inputs = torch.tensor([[0., 0.], [0.1, 0.], [0., 0.1]])
    sums = InformationAccumulator(1, 3, 3)
    sums.add(log_assignments(torch.randn(3, 2), torch.zeros(1, 2), 1., False),
             torch.tensor([0, 1, 2]), log_assignments(inputs, inputs, 1., False))
    values = sums.values(smoothing=1e-9)
    assert values['ib'] == pytest.approx(0., abs=1e-12)
    assert values['ibb_printed'] < -1. < 0. < values['ibb']


def test_fact_3_raw_distances_of_images_underflow():
    images = np.random.default_rng(0).integers(0, 256, (6, 64)).astype(np.float64)
    with np.errstate(invalid='ignore'):
        assert np.isnan(naive_phi(images, images[:3] + 1.)[3:]).all()
    log_phi = log_assignments(torch.from_numpy(images), torch.from_numpy(images[:3] + 1.), 1.,
                              False)
    assert torch.isfinite(log_phi).all()
    assert (log_phi.exp().argmax(1)[:3] == torch.arange(3)).all()
    unit = log_assignments(torch.from_numpy(images), torch.from_numpy(images[:3] / 1e3))
    assert np.allclose(unit.exp().numpy(), naive_phi(images, images[:3] / 1e3, normalize=True))


def test_fact_4_an_empty_cell_of_q_needs_smoothing():
    log_phi = torch.tensor([[0., -800.], [0., -800.]], dtype=torch.float64)
    sums = InformationAccumulator(2, 3).add(log_phi, torch.tensor([0, 1]))
    assert torch.isinf(sums.log_q(0.)[:2, 1]).all() and torch.isnan(sums.log_q(0.)[2]).all()
    smooth = sums.log_q(0.1)
    assert torch.allclose(smooth[0].exp(), torch.tensor([1.1, 0.1]).double() / 1.2)
    assert torch.allclose(smooth[2].exp(), torch.tensor([0.5, 0.5]).double())  # no such samples
    assert torch.allclose(smooth.exp().sum(1), torch.ones(3, dtype=torch.float64))


def test_known_values():
    assert mutual_information(torch.eye(4).double() / 4) == pytest.approx(np.log(4))
    assert mutual_information(torch.full((3, 5), 1 / 15.).double()) == pytest.approx(0, abs=1e-12)
    sums = InformationAccumulator(2, 2).add(torch.tensor([[0., -99.], [-99., 0.]]),
                                            torch.tensor([0, 1]))
    assert sums.values()['i_labels'] == pytest.approx(np.log(2))
    mixed = InformationAccumulator(2, 2).add(torch.tensor([[0., -99.]]),
                                             torch.tensor([[0.3, 0.7]]))
    assert torch.allclose(mixed.labels[0], torch.tensor([0.3, 0.7]).double())


@pytest.mark.parametrize('features, labels, message', [
    (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), 'found `0`'),
    (torch.full((2, 2), float('nan')), torch.tensor([0, 1]), 'found `nan` or `inf`'),
    (torch.zeros(2, 2), torch.tensor([0, 3]), 'labels of 3 classes, found `0 to 3`'),
    (torch.zeros(2, 2), torch.zeros(2, 4), r'labels of 3 classes, found `shape \(2, 4\)`'),
])
def test_refusals(features, labels, message):
    with pytest.raises(ValueError, match=message):
        InformationAccumulator(2, 3).add(log_assignments(features, torch.eye(2)), labels).values()
