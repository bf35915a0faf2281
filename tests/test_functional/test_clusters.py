"""Clusters by k-means: found, the same each time, and never NaN."""

import pytest
import torch

from mmkcr.functional.clusters import fit_clusters, flat_inputs, stream_clusters

CENTRES = torch.tensor([[5., 0., 0.], [0., 5., 0.], [0., 0., 5.]])


def points(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count, ), generator=generator)
    return CENTRES[labels] + 0.1 * torch.randn(count, 3, generator=generator)


def in_order(centroids):
    return centroids[centroids.argmax(0)]


@pytest.mark.parametrize('algorithm', ['minibatch', 'lloyd'])
@pytest.mark.parametrize('normalize', [True, False])
def test_separate_clusters_are_found_and_the_same_each_time(algorithm, normalize):
    found = fit_clusters(points(), 3, 1, normalize, algorithm)
    expected = CENTRES / 5 if normalize else CENTRES
    assert torch.allclose(in_order(found), expected, atol=0.1)
    assert torch.equal(found, fit_clusters(points(), 3, 1, normalize, algorithm))
    if normalize:
        assert torch.allclose(found.norm(dim=1), torch.ones(3))


def test_mini_batches_find_what_all_points_find():
    many = points(5000)
    assert torch.allclose(in_order(fit_clusters(many, 3, 0, False)),
                          in_order(fit_clusters(many, 3, 0, False, 'lloyd')), atol=0.02)


@pytest.mark.parametrize('batch', [3, 7, 40, 100])
def test_in_one_pass(batch):
    found = stream_clusters(points(60).split(batch), 3, 1, False)
    assert torch.allclose(in_order(found), CENTRES, atol=0.2)
    assert torch.equal(found, stream_clusters(points(60).split(batch), 3, 1, False))


@pytest.mark.parametrize('features', [torch.ones(9, 4), torch.ones(1, 4), torch.zeros(5, 4),
                                      torch.eye(4)[:2]])
@pytest.mark.parametrize('normalize', [True, False])
def test_fewer_distinct_points_than_clusters(features, normalize):
    found = fit_clusters(features, 6, 0, normalize)
    assert found.shape == (6, 4) and torch.isfinite(found).all()
    if normalize:
        features = torch.nn.functional.normalize(features, dim=1)
    for centroid in found:  # each is one of the points
        assert (features - centroid).abs().sum(1).min() < 1e-6


def test_images_are_averaged_down():
    images = torch.arange(2 * 3 * 4 * 4.).view(2, 3, 4, 4)
    assert torch.equal(flat_inputs(images), images.flatten(1))
    small = flat_inputs(list(images), 2)
    assert small.shape == (2, 12)
    assert float(small[1, 0]) == pytest.approx(float(images[1, 0, :2, :2].mean()))
    assert torch.equal(flat_inputs(torch.ones(3, 5)), torch.ones(3, 5))


@pytest.mark.parametrize('features, algorithm, message', [
    (torch.zeros(0, 3), 'lloyd', 'found `0`'),
    (torch.full((3, 3), float('inf')), 'lloyd', 'found `nan` or `inf`'),
    (torch.ones(3, 3), 'ward', "'minibatch' or 'lloyd', found `ward`"),
])
def test_refusals(features, algorithm, message):
    with pytest.raises(ValueError, match=message):
        fit_clusters(features, 2, normalize=False, algorithm=algorithm)
