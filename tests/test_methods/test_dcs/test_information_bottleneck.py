"""InformationBottleneckLoss: naive NumPy, autograd, mixed labels, and where NaN could come from."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.clusters import fit_clusters
from mmkcr.functional.information import InformationAccumulator
from mmkcr.registry import MODELS


def build(**kwargs):
    kwargs = {**dict(num_features=4, num_classes=3, weight=2.), **kwargs}
    return MODELS.build(dict(type='mmkcr.InformationBottleneckLoss', **kwargs))


def refresh(loss, features, labels):
    """As the hook does, on features in memory."""
    loss.centroids.copy_(fit_clusters(features, loss.num_clusters, 0, loss.normalize))
    sums = InformationAccumulator(loss.num_clusters, loss.num_classes)
    sums.add(loss.log_phi(features), labels)
    loss.refresh(loss.centroids, sums.log_q(loss.smoothing), 0)
    return loss


def batch(n=12, seed=0, d=4, classes=3):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, d, generator=generator).double(),
            torch.randint(classes, (n, ), generator=generator))


def naive(loss, features, labels):
    x = features.detach().numpy()
    if loss.normalize:
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    c = loss.centroids.double().numpy()
    phi = np.exp(-loss.beta * ((x[:, None] - c[None])**2).sum(-1))
    phi = phi / phi.sum(1, keepdims=True)
    q = np.exp(loss.log_q.double().numpy())
    return -loss.weight * np.mean([sum(phi[i, a] * np.log(q[labels[i], a])
                                       for a in range(len(c))) for i in range(len(x))])


@given(st.booleans(), st.floats(0.1, 3.), st.integers(1, 6), st.integers(0, 20))
@settings(max_examples=30, deadline=None)
def test_value_is_the_naive_one(normalize, beta, clusters, seed):
    loss = build(normalize=normalize, beta=beta, num_clusters=clusters)
    features, labels = batch(seed=seed)
    refresh(loss, features, labels)
    assert float(loss(features, labels)) == pytest.approx(naive(loss, features, labels), rel=1e-5)
    assert float(loss.log_vars()['variational']) == pytest.approx(
        naive(loss, features, labels) / 2., rel=1e-5)


@pytest.mark.parametrize('normalize', [True, False])
def test_gradients(normalize):
    loss, (features, labels) = build(normalize=normalize, beta=0.7), batch()
    refresh(loss, *batch(30, seed=1))
    loss.double()
    features.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, labels), (features, ))
    # and those of the printed loss, distances and first term included
    value = loss(features, labels)
    ours, = torch.autograd.grad(value, features)
    x = torch.nn.functional.normalize(features, dim=1) if normalize else features
    phi = (-0.7 * torch.cdist(x, loss.centroids).square()).softmax(1)
    inputs = torch.rand(12, 3, dtype=torch.float64).softmax(1)
    first = torch.einsum('ia,ib,ib->', phi, inputs, inputs.log()) / 12
    second = -(phi * loss.log_q[labels]).sum(1).mean()
    printed, = torch.autograd.grad(2. * (first + second), features)
    assert torch.allclose(ours, printed, atol=1e-9)


def test_mixed_images_count_with_the_scores_of_their_classes():
    features, labels = batch()
    loss, share = refresh(build(), features, labels), 0.3
    other = labels.roll(1)
    scores = share * torch.eye(3)[labels] + (1 - share) * torch.eye(3)[other]
    expected = share * loss(features, labels) + (1 - share) * loss(features, other)
    assert float(loss(features, scores)) == pytest.approx(float(expected), rel=1e-6)


CASES = dict(
    duplicates=(torch.ones(8, 4), torch.arange(8) % 3),
    zeros=(torch.zeros(8, 4), torch.arange(8) % 3),
    one_class=(torch.randn(8, 4), torch.zeros(8, dtype=torch.long)),
    fewer_samples_than_clusters=(torch.randn(2, 4), torch.tensor([0, 1])),
    far_apart=(1e4 * torch.eye(4).repeat(2, 1), torch.arange(8) % 3))


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('normalize', [True, False])
@pytest.mark.parametrize('autocast', [None, torch.bfloat16, torch.float16])
def test_never_nan(name, normalize, autocast):
    features, labels = CASES[name]
    loss = refresh(build(normalize=normalize, num_clusters=5), features, labels)
    low = features.clone().requires_grad_()
    with torch.autocast('cpu', autocast, enabled=autocast is not None):
        weight = torch.eye(4, requires_grad=True)
        used = low @ weight  # in the low precision, as features of a network are
        assert used.dtype == (autocast or torch.float32)
        value = loss(used, labels)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.isfinite(value) and torch.isfinite(low.grad).all()
    assert torch.isfinite(loss.log_q).all()
    unseen = loss(features, torch.full((len(features), ), 2))  # perhaps a class without samples
    assert torch.isfinite(unseen)


def test_one_class_alone():
    loss = refresh(build(num_classes=1), batch()[0], torch.zeros(12, dtype=torch.long))
    assert float(loss(batch()[0], torch.zeros(12, dtype=torch.long))) == pytest.approx(0, abs=1e-6)


def test_the_state_is_in_the_checkpoint():
    loss = refresh(build(), *batch())
    state, fresh = copy.deepcopy(loss.state_dict()), build()
    assert not fresh.ready
    fresh.load_state_dict(state)
    assert fresh.ready and int(fresh.refresh_step) == 0
    assert torch.equal(fresh(*batch(seed=1)), loss(*batch(seed=1)))
    assert not list(loss.parameters())


@pytest.mark.parametrize('kwargs, message', [
    (dict(beta=0), 'beta > 0, found `0`'), (dict(smoothing=-1), 'smoothing > 0, found `-1`'),
    (dict(num_clusters=-2), 'num_clusters > 0, found `-2`')])
def test_bad_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


def test_bad_calls():
    features, labels = batch()
    with pytest.raises(RuntimeError, match='expected clusters, found none .* add `Information'):
        build()(features, labels)
    loss = refresh(build(), features, labels)
    with pytest.raises(ValueError, match=r'features of shape \(12, 4\), found `\(12, 3\)`'):
        loss(features[:, :3], labels)
    for short in (torch.zeros(1, 4), torch.zeros(3, 1)):  # they would broadcast
        with pytest.raises(ValueError, match=r'centroids of shape \(3, 4\), found `'):
            loss.refresh(short, loss.log_q)
