"""Kernel complexity against a naive NumPy version with n x n and m x m matrices."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mmkcr.functional.kernel import (
    MomentAccumulator,
    approximate_tnn,
    kernel_complexity,
    leading_basis,
    moment_of,
    spectrum,
    tails,
    tnn,
    truncation_rank,
)


def draw_features(n, d, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + rng.normal(size=d)


def naive_tails(kernel):
    """sum_{i>h} of the eigenvalues of K / n, for h = 0 … n."""
    values = np.sort(np.linalg.eigvalsh(kernel / len(kernel)))[::-1].clip(0)
    return np.array([values[h:].sum() for h in range(len(values) + 1)])


def naive_nystrom(features, landmarks, r):
    """U~ = C Q L^{-1/2} of the paper, (n, r)."""
    chosen = features[landmarks]
    values, vectors = np.linalg.eigh(chosen @ chosen.T)
    values, vectors = values[::-1][:r], vectors[:, ::-1][:, :r]
    return features @ chosen.T @ vectors / np.sqrt(values)


def naive_orthonormal(u):
    values, vectors = np.linalg.eigh(u.T @ u)
    return u @ (vectors / np.sqrt(values)) @ vectors.T


shapes = st.tuples(st.integers(2, 60), st.integers(1, 12), st.integers(0, 10**6))


@given(shapes)
@settings(max_examples=60, deadline=None)
def test_exact_values_equal_the_gram_matrix(shape):
    n, d, seed = shape
    features = draw_features(n, d, seed)
    expected = naive_tails(features @ features.T)
    values, vectors = spectrum(moment_of(torch.from_numpy(features)))
    r0 = min(n, d)
    scale = expected[0]
    assert np.allclose(tails(values)[:r0 + 1], expected[:r0 + 1], rtol=1e-5, atol=1e-9 * scale)
    for r in range(r0 + 1):
        assert float(tnn(values, r)) == pytest.approx(expected[r], rel=1e-5, abs=1e-9 * scale)
    kc, h = kernel_complexity(tails(values), n)
    loop = [k / n + np.sqrt(expected[k] / n) for k in range(r0 + 1)]
    assert kc == pytest.approx(min(loop), rel=1e-5, abs=1e-6 * np.sqrt(scale))
    assert loop[h] == pytest.approx(min(loop), rel=1e-5, abs=1e-6 * np.sqrt(scale))
    assert torch.allclose(vectors.T @ vectors, torch.eye(d, dtype=torch.float64), atol=1e-9)


@given(shapes, st.data())
@settings(max_examples=60, deadline=None)
def test_approximate_tnn_at_every_h_equals_the_m_x_m_version(shape, data):
    n, d, seed = shape
    d = min(d, n)
    m = data.draw(st.integers(d, n))
    features = draw_features(n, d, seed)
    landmarks = np.random.default_rng(seed).permutation(n)[:m]
    tensor = torch.from_numpy(features)
    moment, chosen = moment_of(tensor), moment_of(tensor[landmarks])
    sample = approximate_tnn(moment, chosen, 'sample')
    projection = approximate_tnn(moment, chosen)
    kernel = features @ features.T / n
    total = np.trace(kernel)
    chosen = features[landmarks]
    for r in range(1, d + 1):
        u_tilde = naive_nystrom(features, landmarks, r)
        if np.linalg.cond(u_tilde) > 1e4:
            continue  # the naive inverse square roots lose the digits, not ours
        u = naive_orthonormal(u_tilde)
        expected = total - np.trace(u.T @ kernel @ u)
        assert float(sample[r]) == pytest.approx(expected, rel=1e-5, abs=1e-6 * total)
        v = np.linalg.svd(chosen, full_matrices=False)[2][:r].T
        residual = np.square(features - features @ v @ v.T).sum() / n
        assert float(projection[r]) == pytest.approx(residual, rel=1e-5, abs=1e-6 * total)


def test_fact_1_the_nystrom_vectors_are_f_v():
    features = draw_features(300, 16, 0)
    landmarks = np.arange(0, 300, 3)
    basis = leading_basis(moment_of(torch.from_numpy(features[landmarks])), 5).numpy()
    naive, ours = naive_nystrom(features, landmarks, 5), features @ basis
    naive *= np.sign((naive * ours).sum(0))
    assert np.abs(naive - ours).max() < 1e-8 * np.abs(ours).max()


def test_fact_2_the_printed_formula_is_not_the_tnn():
    n, d, m, r = 2000, 64, 400, 13
    features = draw_features(n, d, 0)
    landmarks = np.random.default_rng(1).permutation(n)[:m]
    exact = naive_tails(features @ features.T)[r]
    kernel = features @ features.T / n
    u = naive_nystrom(features, landmarks, r)
    printed = np.trace(kernel) - np.trace(u.T @ kernel @ u)
    u = naive_orthonormal(u)
    repaired = np.trace(kernel) - np.trace(u.T @ kernel @ u)
    tensor = torch.from_numpy(features)
    projected = approximate_tnn(moment_of(tensor), moment_of(tensor[landmarks]))[r]
    # The numbers of docs/kernel_complexity.md.
    assert [np.trace(kernel), exact, repaired, float(projected)] == pytest.approx(
        [4130.86, 1864.07, 1940.59, 1992.05], abs=0.01)
    assert printed == pytest.approx(-7.573e8, rel=1e-3)


@given(shapes, st.data())
@settings(max_examples=60, deadline=None)
def test_fact_3_residuals_bound_the_tnn_and_are_tight(shape, data):
    n, d, seed = shape
    m = data.draw(st.integers(1, n))
    features = torch.from_numpy(draw_features(n, d, seed))
    moment = moment_of(features)
    exact = tails(spectrum(moment)[0])
    slack = 1e-9 * float(exact[0])
    for form in ('projection', 'sample'):
        approximate = approximate_tnn(moment, moment_of(features[:m]), form)
        assert (approximate >= exact - slack).all()
        assert (approximate.diff() <= slack).all()
        tight = approximate_tnn(moment, moment, form)
        assert torch.allclose(tight, exact, rtol=1e-6, atol=slack)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_any_chunks_give_one_moment(sizes, d):
    assume(sum(sizes) > 0)
    features = torch.randn(sum(sizes), d, dtype=torch.float64)
    found = MomentAccumulator(d)
    for part in features.split(sizes):
        found.add(part)
    assert found.count == len(features)
    assert torch.allclose(found.moment(), features.T @ features / len(features), atol=1e-12)


def test_half_precision_features_are_summed_in_fp64():
    features = torch.randn(5000, 8).half()
    assert torch.equal(moment_of(features), moment_of(features.double()))


def test_sign_of_the_basis_does_not_depend_on_rounding():
    moment = moment_of(torch.randn(500, 20, dtype=torch.float64))
    noise = torch.randn(20, 20, dtype=torch.float64) * 1e-15
    a, b = leading_basis(moment, 20), leading_basis(moment + noise + noise.T, 20)
    assert torch.allclose(a, b, atol=1e-9)


@pytest.mark.parametrize('n, d, ratio, rank', [(1000, 768, 0.2, 154), (10, 768, 0.2, 2),
                                               (100, 5, 0.2, 1), (10**6, 10, 0.7, 7),
                                               (50, 3, 1.0, 3), (2, 2, 0.01, 1)])
def test_truncation_rank(n, d, ratio, rank):
    assert truncation_rank(n, d, ratio) == rank


def test_bad_input_is_one_sentence():
    for message, function, *arguments in (
            (r'rank ratio in \(0, 1\], found `1.5`', truncation_rank, 10, 10, 1.5),
            (r'shape \(B, 3\), found `\(2, 4\)`', MomentAccumulator(3).add, torch.zeros(2, 4)),
            ('at least one sample, found `0`', MomentAccumulator(3).moment),
            ('finite features', moment_of, torch.full((2, 3), float('nan'))),
            ("'projection' or 'sample', found `x`", approximate_tnn, *[torch.eye(2)] * 2, 'x')):
        with pytest.raises(ValueError, match=message):
            function(*arguments)
