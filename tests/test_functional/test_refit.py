"""Refits against fp64 least squares, and never worse than plain selection."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.moments import Moments
from mmkcr.functional.pivots import pivot_order, ridge
from mmkcr.functional.refit import RIDGES, choose_ridge, patches, refit, refit_output
from moments import gram_matrix, moments_of, reconstruction_error

exactly = settings(derandomize=True, deadline=None, max_examples=60)


@st.composite
def problems(draw):
    """Rows, consumer, kept units."""
    d = draw(st.integers(1, 12))
    return dict(d=d, n=draw(st.integers(2, 60)), rank=draw(st.integers(1, d)),
                m=draw(st.integers(1, 5)), k=draw(st.integers(1, d)),
                offset=draw(st.sampled_from([0., 1., 100.])), seed=draw(st.integers(0, 10**6)))


def build(draw_rows, d, n, rank, m, k, offset, seed):
    rows = draw_rows(n, d, rank, seed, offset)
    weight, bias = draw_rows(m, d, m, seed + 1), draw_rows(1, m, 1, seed + 2)[0]
    kept = torch.randperm(d, generator=torch.Generator().manual_seed(seed))[:k].sort().values
    return rows, weight, bias, kept


def mean_error(outputs, targets):
    return float((outputs - targets).square().sum(1).mean())


def with_best_bias(outputs, targets):
    return outputs + (targets - outputs).mean(0)


def least_squares(inputs, targets, prior, noise):
    """argmin of the mean ||x W^T + b - y||^2 + noise (W - prior)^2, by a QR of the rows."""
    n = len(inputs)
    left = inputs - inputs.mean(0)
    right = targets - targets.mean(0)
    root = (n * noise).sqrt().diag()
    left = torch.cat([left, root])
    right = torch.cat([right, root @ prior.T])
    weight = torch.linalg.lstsq(left, right, driver='gelsd').solution.T
    return weight, targets.mean(0) - weight @ inputs.mean(0)


@given(problems(), st.sampled_from([1e-4, 1e-2, 1.]))
@exactly
def test_refit_is_the_ridge_regression_towards_selection(draw_rows, case, rho):
    rows, weight, bias, kept = build(draw_rows, **case)
    moments = moments_of(rows)
    new, new_bias = refit(weight, bias, moments.covariance, moments.mean, kept, rho)
    targets = rows @ weight.T + bias
    noise = ridge(moments.covariance, rho)[kept]
    expected, expected_bias = least_squares(rows[:, kept], targets, weight[:, kept], noise)
    scale = float(weight.abs().max())
    assert torch.allclose(new, expected, rtol=1e-6, atol=1e-7 * scale)
    outputs = rows[:, kept] @ new.T + new_bias
    expected_outputs = rows[:, kept] @ expected.T + expected_bias
    assert torch.allclose(outputs, expected_outputs, atol=1e-7 * float(targets.abs().max() + 1))


@given(problems(), st.sampled_from([0., 1e-6, 1e-3, .1, 10.]))
@exactly
def test_never_worse_than_selection_of_the_same_units(draw_rows, case, rho):
    rows, weight, bias, kept = build(draw_rows, **case)
    moments = moments_of(rows)
    new, new_bias = refit(weight, bias, moments.covariance, moments.mean, kept, rho)
    targets = rows @ weight.T + bias
    refitted = mean_error(rows[:, kept] @ new.T + new_bias, targets)
    selected = rows[:, kept] @ weight[:, kept].T
    scale = 1e-12 * float(targets.square().sum(1).mean())
    assert refitted <= mean_error(with_best_bias(selected, targets), targets) + scale
    assert refitted <= mean_error(selected + bias, targets) + scale
    gram = gram_matrix(weight)
    assert refitted == pytest.approx(
        reconstruction_error(moments.covariance, gram, kept, rho), rel=1e-6, abs=10 * scale)


@given(problems(), st.sampled_from([0., 1e-3, 1.]))
@exactly
def test_all_units_change_nothing(draw_rows, case, rho):
    rows, weight, bias, _ = build(draw_rows, **case)
    moments = moments_of(rows)
    new, new_bias = refit(weight, bias, moments.covariance, moments.mean,
                          torch.arange(case['d']), rho)
    assert torch.equal(new, weight)
    assert torch.allclose(new_bias, bias, atol=1e-9 * float((rows @ weight.T).abs().max() + 1))


@pytest.mark.parametrize('dtype', [torch.float16, torch.float32])
def test_computed_in_fp64_and_given_back_as_it_came(draw_rows, dtype):
    rows, weight = draw_rows(50, 9, 9, 0), draw_rows(4, 9, 4, 1).to(dtype)
    moments, kept = moments_of(rows), torch.tensor([0, 4, 7])
    arguments = (moments.covariance, moments.mean, kept)
    found = refit(weight, None, *arguments)
    expected = refit(weight.double(), None, *arguments)
    for value, exact in zip(found, expected):
        assert value.dtype == dtype and torch.equal(value, exact.to(dtype))


@given(problems(), st.sampled_from([1e-4, 1e-2, 1.]), st.booleans())
@exactly
def test_outputs_refitted_to_targets(draw_rows, case, rho, with_prior):
    rows, weight, _, _ = build(draw_rows, **case)
    targets = draw_rows(case['n'], case['m'], case['m'], case['seed'] + 3) + torch.tanh(
        rows @ weight.T)
    moments = moments_of(rows, targets)
    prior = weight if with_prior else torch.zeros_like(weight)
    new, bias = refit_output(moments, prior, rho)
    noise = ridge(moments.covariance, rho)
    expected, expected_bias = least_squares(rows, targets, prior, noise)
    scale = float(targets.abs().max() + weight.abs().max())
    assert torch.allclose(new, expected, rtol=1e-6, atol=1e-7 * scale)
    error = mean_error(rows @ new.T + bias, targets)
    tolerance = 1e-9 * mean_error(rows @ prior.T, targets)
    assert error <= mean_error(with_best_bias(rows @ prior.T, targets), targets) + tolerance
    assert error <= mean_error(rows @ prior.T + expected_bias, targets) + tolerance


def test_independent_problems_at_once(draw_rows):
    rows, targets = draw_rows(60, 4, 4, 0).view(2, 30, 4), draw_rows(60, 3, 3, 1).view(2, 30, 3)
    prior = draw_rows(6, 4, 4, 2).view(2, 3, 4)
    moments = Moments(4, 3, batch=(2, )).add(rows, targets)
    weights, biases = refit_output(moments, prior, 1e-2)
    for i in range(2):
        alone = moments_of(rows[i], targets[i])
        weight, bias = refit_output(alone, prior[i], 1e-2)
        assert torch.allclose(weights[i], weight) and torch.allclose(biases[i], bias)


def left_out_errors(parts, prior, biased, ridges):
    """Summed squared errors on each part of refits to the rows of all others, in NumPy."""
    errors = []
    for rho in ridges:
        total = 0.
        for place, (inputs, targets) in enumerate(parts):
            others = [part for other, part in enumerate(parts) if other != place]
            x, y = (np.concatenate(side) for side in zip(*others))
            middle = x.mean(0) if biased else np.zeros(x.shape[1])
            level = y.mean(0) if biased else np.zeros(y.shape[1])
            x, y = x - middle, y - level
            covariance = x.T @ x / len(x)
            matrix = covariance + rho * np.diag(np.diag(covariance))
            weight = prior + np.linalg.solve(matrix, x.T @ (y - x @ prior.T) / len(x)).T
            total += float(np.square((inputs - middle) @ weight.T + level - targets).sum())
        errors.append(total)
    return np.array(errors)


@given(st.integers(2, 5), st.integers(1, 6), st.integers(1, 3), st.booleans(), st.booleans(),
       st.floats(0., 3.), st.integers(0, 10**6))
@exactly
def test_the_ridge_is_that_of_leaving_groups_out(draw_rows, groups, k, m, biased, with_prior, noise,
                                                 seed):
    """Groups of several sizes; targets with noise, of which more asks for a larger ridge."""
    sizes = [k + 2 + (seed + 3 * group) % 7 for group in range(groups)]
    rows = draw_rows(sum(sizes), k, k, seed)
    targets = torch.tanh(rows @ draw_rows(k, m, k, seed + 1)) + noise * draw_rows(
        sum(sizes), m, m, seed + 2)
    prior = draw_rows(m, k, m, seed + 3) if with_prior else torch.zeros(m, k).double()
    parts = [*zip(rows.split(sizes), targets.split(sizes))]
    errors = left_out_errors([[side.numpy() for side in part] for part in parts], prior.numpy(),
                             biased, RIDGES)
    chosen = choose_ridge([moments_of(*part) for part in parts], prior, biased)
    assert errors[RIDGES.index(chosen)] <= errors.min() * (1 + 1e-9)


def test_a_ridge_needs_two_groups(draw_rows):
    with pytest.raises(ValueError, match='two or more groups'):
        choose_ridge([moments_of(draw_rows(9, 3, 3, 0), draw_rows(9, 2, 2, 1))], torch.zeros(2, 3))


@pytest.mark.parametrize('factor', [1e-3, 1e3])
def test_a_unit_in_another_scale_changes_nothing(draw_rows, factor):
    """Its reader's column is divided: the same function, before and after any refit to it."""
    rows, weight, bias, kept = build(draw_rows, 24, 300, 24, 6, 12, 1., 0)
    rows, targets = torch.tanh(rows), draw_rows(300, 6, 6, 5)
    scale = torch.ones(24).double()
    scale[kept[3]], scale[(kept[3] + 1) % 24] = factor, factor

    def fitted(scale):
        moments = moments_of(rows * scale)
        order = pivot_order(moments.covariance, gram_matrix(weight / scale))
        one, _ = refit(weight / scale, bias, moments.covariance, moments.mean, kept)
        parts = [moments_of(*part) for part in zip((rows * scale).split(60), targets.split(60))]
        rho = choose_ridge(parts, weight / scale)
        two, _ = refit_output(Moments.union(parts), weight / scale, rho)
        return order, rho, one * scale[kept], two * scale

    (order, rho, *weights), (other, other_rho, *others) = map(fitted, (torch.ones(24), scale))
    assert torch.equal(order.order, other.order) and rho == other_rho
    for one, two in zip([order.errors, *weights], [other.errors, *others]):
        torch.testing.assert_close(two, one, rtol=1e-6, atol=1e-8 * float(one.abs().max()))


convolutions = st.fixed_dictionaries(dict(
    channels=st.integers(1, 5), side=st.sampled_from([1, 2, 3]), stride=st.integers(1, 2),
    padding=st.integers(0, 1), dilation=st.integers(1, 2), seed=st.integers(0, 10**6)))


@given(convolutions)
@exactly
def test_convolutions_are_linear_layers_on_patches(case):
    generator = torch.Generator().manual_seed(case.pop('seed'))
    channels, side = case.pop('channels'), case.pop('side')
    maps, kernels, bias = (torch.randn(*shape, dtype=torch.float64, generator=generator)
                           for shape in ((3, channels, 8, 7), (4, channels, side, side), (4, )))
    rows = patches(maps, side, **case).flatten(3).flatten(0, 2)
    assert torch.allclose(rows @ kernels.flatten(1).T + bias, F.conv2d(
        maps, kernels, bias, **case).permute(0, 2, 3, 1).flatten(0, 2))
