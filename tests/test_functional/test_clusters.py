"""Clusters by k-means: found, the same each time, and never NaN."""

import pytest
import torch

from mmkcr.functional.clusters import fit_clusters, flat_inputs

CENTRES = torch.tensor([[5., 0., 0.], [0., 5., 0.], [0., 0., 5.]])


def points(count=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count, ), generator=generator)
    return CENTRES[labels] + 0.1 * torch.randn(count, 3, generator=generator)


def in_order(centroids):
    return centroids[centroids.argmax(0)]


@pytest.mark.parametrize('normalize', [True, False])
def test_separate_clusters_are_found_and_the_same_each_time(normalize):
    found = fit_clusters(points(), 3, 1, normalize)
    expected = CENTRES / 5 if normalize else CENTRES
    assert torch.allclose(in_order(found), expected, atol=0.1)
    assert torch.equal(found, fit_clusters(points(), 3, 1, normalize))
    if normalize:
        assert torch.allclose(found.norm(dim=1), torch.ones(3))


def error(features, centroids):
    return float(torch.cdist(features, centroids).square().min(1).values.mean())


def test_as_good_as_scikit_learn():
    """Without structure, where many minima are about as deep."""
    from sklearn.cluster import KMeans
    features = torch.randn(4000, 16, generator=torch.Generator().manual_seed(0))
    theirs, ours = 0., 0.
    for seed in range(4):
        theirs += KMeans(50, n_init=1, random_state=seed).fit(features.numpy()).inertia_ / 4000
        found = fit_clusters(features, 50, seed, normalize=False)
        ours += error(features, found)
        # centroids are the means of their points, but for a last step that brings a thousandth
        labels = torch.cdist(features, found).argmin(1)
        means = torch.stack([features[labels == index].mean(0) for index in range(50)])
        assert error(features, means) > (1 - 2e-3) * error(features, found)
    assert ours < 1.01 * theirs


def test_iterations_go_on_from_given_centroids():
    features = torch.randn(3000, 8, generator=torch.Generator().manual_seed(0))
    first = fit_clusters(features[:300], 20, 0, False)
    longer = fit_clusters(features, 20, 5, False, start=first)
    assert error(features, longer) < error(features, first)
    # clusters without points stay where they are
    far = torch.full((1, 8), 100.)
    found = fit_clusters(features, 3, 0, False, start=torch.cat([features[:2], far]))
    assert torch.equal(found[2:], far)


def test_the_same_bits_on_any_number_of_threads():
    features = torch.randn(20000, 12, generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(2)
    two = fit_clusters(features, 30)
    torch.set_num_threads(1)
    assert torch.equal(fit_clusters(features, 30), two)


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
    images = torch.arange(2 * 3 * 64 * 64.).view(2, 3, 64, 64)
    small = flat_inputs(list(images))
    assert small.shape == (2, 3 * 32 * 32)
    assert float(small[1, 0]) == pytest.approx(float(images[1, 0, :2, :2].mean()))
    few = images[..., :4, :4]
    assert torch.equal(flat_inputs(few), few.flatten(1))
    assert torch.equal(flat_inputs(torch.ones(3, 5)), torch.ones(3, 5))


@pytest.mark.parametrize('features, message', [
    (torch.zeros(0, 3), 'found `0`'),
    (torch.full((3, 3), float('inf')), 'found `nan` or `inf`'),
])
def test_refusals(features, message):
    with pytest.raises(ValueError, match=message):
        fit_clusters(features, 2, normalize=False)
