"""Orders of units: every step greedy, every error as computed directly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional import sweep
from mmkcr.functional.pivots import MIN_RHO, pivot_order, ridge, solve_psd
from moments import gram_matrix, moments_of, reconstruction_error

exactly = settings(derandomize=True, deadline=None, max_examples=40)


def directly(covariance, gram, kept, rho):
    """tr(G (C' - C'[:, K] C'[K, K]^-1 C'[K, :])), C' = C + rho diag(C)."""
    noisy = covariance + ridge(covariance, rho).diag()
    left = noisy
    if len(kept):
        left = noisy - noisy[:, kept] @ torch.linalg.solve(noisy[kept][:, kept], noisy[kept])
    return float((gram * left).sum())


def kept(order, count, groups=1):
    """Channels of the first units."""
    return (order.order[:count, None] * groups + torch.arange(groups)).flatten().sort().values


def assert_exact(order, covariance, gram, rho=1e-3, extra=None, groups=1, **tolerance):
    """The error at every size is as computed directly, and what is lost beside it."""
    assert float(order.errors[-1]) == 0
    for k in range(len(order.order)):
        lost = 0 if extra is None else float(extra[order.order[k:]].sum())
        assert float(order.errors[k]) == pytest.approx(
            directly(covariance, gram, kept(order, k, groups), rho) + lost, **tolerance)


def problem(draw_rows, d, rank, seed, outputs=3):
    covariance = moments_of(draw_rows(3 * d, d, rank, seed)).covariance
    return covariance, gram_matrix(draw_rows(outputs, d, outputs, seed + 1))


problems = st.tuples(st.integers(1, 14), st.integers(0, 10**6)).flatmap(
    lambda case: st.tuples(st.just(case[0]), st.integers(1, case[0]), st.just(case[1])))


@pytest.mark.parametrize('size', [1, 3])
@given(case=problems, rho=st.sampled_from([1e-8, 1e-3, .1]))
@exactly
def test_every_step_is_greedy_and_its_error_exact(draw_rows, size, case, rho):
    covariance, gram = problem(draw_rows, size * case[0], *case[1:])
    order = pivot_order(covariance, gram, groups=size, rho=rho)
    channels = torch.arange(size * case[0]).split(size)
    units = range(len(channels))
    assert sorted(order.order.tolist()) == list(units)
    start = directly(covariance, gram, [], rho)

    def error(chosen):
        kept = [channel for unit in chosen for channel in channels[unit].tolist()]
        return directly(covariance, gram, kept, rho)

    for k in units:
        chosen, unit = order.order[:k].tolist(), int(order.order[k])
        here, grown = error(chosen), [*chosen, unit]
        assert float(order.errors[k]) == pytest.approx(here, rel=1e-6, abs=1e-9 * start)
        # the step between k and k + 1 units is the best one
        after = error(grown)
        taken = here - after
        for other in chosen:
            step = error([one for one in grown if one != other]) - after
            assert taken <= step + 1e-6 * abs(step) + 1e-9 * start
    assert float(order.errors[-1]) == 0


@pytest.mark.parametrize('groups', [1, 8, 64])
@pytest.mark.parametrize('rho', [0., 1e-3])
def test_curves_of_many_units(draw_rows, groups, rho):
    """More units than a panel holds, several flushes, fresh starts as the residual dies."""
    covariance, gram = problem(draw_rows, 320, 120, 0, outputs=40)
    order = pivot_order(covariance, gram, groups=groups, rho=rho)
    assert (order.errors.diff() <= 0).all() and order.errors[-1] == 0
    counts = torch.linspace(0, len(order.order), 12).long().tolist()
    for count in counts:
        chosen = kept(order, count, groups)
        noisy = directly(covariance, gram, chosen, max(rho, MIN_RHO))
        total = float(order.errors[0])
        assert float(order.errors[count]) == pytest.approx(noisy, rel=1e-5, abs=1e-11 * total)
        assert reconstruction_error(covariance, gram, chosen, rho) <= \
            float(order.errors[count]) + 1e-11 * total


def test_panels_do_not_matter(draw_rows, monkeypatch):
    covariance, gram = problem(draw_rows, 92, 60, 3, outputs=20)
    expected = pivot_order(covariance, gram, groups=4)
    monkeypatch.setattr(sweep, 'PANEL', 12)
    order = pivot_order(covariance, gram, groups=4)
    assert torch.equal(order.order, expected.order)
    assert torch.allclose(order.errors, expected.errors, rtol=1e-8)


def test_dependent_units_come_last_and_cost_nothing(draw_rows):
    covariance, gram = problem(draw_rows, 40, 7, 0, outputs=12)
    order = pivot_order(covariance, gram, rho=0.)
    total = reconstruction_error(covariance, gram, order.order[:0])
    assert reconstruction_error(covariance, gram, order.order[:7], 0.) < 1e-12 * total
    assert reconstruction_error(covariance, gram, order.order[:6], 0.) > 1e-6 * total
    assert float(order.errors[7]) < 1e-6 * total


def test_units_of_several_channels(draw_rows):
    covariance, gram = problem(draw_rows, 9, 9, 0)
    order = pivot_order(covariance, gram, 3)
    assert_exact(order, covariance, gram, groups=3, abs=1e-9 * float(order.errors[0]))


def test_consumers_with_inputs_of_their_own_add_up(draw_rows):
    first, second = (problem(draw_rows, 12, 12, seed) for seed in (0, 5))
    order = pivot_order(*(torch.stack(pair) for pair in zip(first, second)))
    for k in range(12):
        expected = sum(directly(*pair, order.order[:k], 1e-3) for pair in (first, second))
        assert float(order.errors[k]) == pytest.approx(expected, abs=1e-9 * float(order.errors[0]))
    same = pivot_order(torch.stack([first[0]] * 2), torch.stack([first[1]] * 2))
    alone = pivot_order(*first)
    assert torch.equal(same.order, alone.order)
    assert torch.allclose(same.errors, 2 * alone.errors)


def test_extra_errors_are_counted(draw_rows):
    covariance, gram = problem(draw_rows, 30, 30, 0)
    extra = torch.rand(30, dtype=torch.float64) * gram.trace()
    order = pivot_order(covariance, gram, extra=extra)
    assert_exact(order, covariance, gram, extra=extra, rel=1e-8, abs=1e-12)


def test_degenerate_problems_have_an_order():
    nothing = torch.zeros(5, 5)
    for covariance, gram in ((nothing, torch.eye(5)), (torch.eye(5), nothing), (nothing, nothing)):
        order = pivot_order(covariance, gram)
        assert sorted(order.order.tolist()) == list(range(5))
        assert torch.isfinite(order.errors).all()


@pytest.mark.parametrize('groups', [1, 2, 4])
@pytest.mark.parametrize('scale', [2.**-33, 2.**-66, 2.**-126, 2.**66])
def test_units_of_any_scale(draw_rows, groups, scale):
    """As of a network with tiny weights; with powers of two to the last digit."""
    covariances = torch.stack([moments_of(draw_rows(40, 16, 16, seed)).covariance
                               for seed in range(3)])
    gram = torch.stack([gram_matrix(draw_rows(8, 16, 8, seed)) for seed in range(3, 6)])
    expected = pivot_order(covariances, gram, groups)
    scales = torch.tensor([scale**2, 1., scale], dtype=torch.float64)[:, None, None]
    scaled = pivot_order(covariances * scales, gram / scales, groups)
    assert torch.equal(scaled.order, expected.order)
    assert torch.equal(scaled.errors, expected.errors)


def test_variances_of_very_different_sizes(draw_rows):
    """Massive activations: one unit with 1e6 times the others' variance."""
    rows = draw_rows(400, 24, 24, 0)
    rows[:, 5] *= 1e3
    covariance = moments_of(rows).covariance
    gram = gram_matrix(draw_rows(6, 24, 6, 1))
    order = pivot_order(covariance, gram, rho=1e-8)
    assert_exact(order, covariance, gram, 1e-8, rel=1e-4)


@given(problems)
@exactly
def test_reconstruction_error_is_that_of_least_squares(draw_rows, case):
    d, rank, seed = case
    rows, weight = draw_rows(3 * d, d, rank, seed), draw_rows(3, d, 3, seed + 1)
    kept = torch.randperm(d, generator=torch.Generator().manual_seed(seed))[:max(1, d // 2)]
    centred = rows - rows.mean(0)
    target = centred @ weight.T
    best = torch.linalg.lstsq(centred[:, kept], target, driver='gelsd').solution
    expected = float((target - centred[:, kept] @ best).square().sum(1).mean())
    scale = float(target.square().sum(1).mean())
    found = reconstruction_error(moments_of(rows).covariance, gram_matrix(weight), kept, 0.)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-8 * scale)


def test_solve_psd_takes_singular_systems():
    root = torch.randn(3, 6, 4, dtype=torch.float64)
    matrix = root @ root.mT
    matrix[0] += torch.eye(6)
    solution = torch.randn(3, 6, 2, dtype=torch.float64)
    found = solve_psd(matrix, matrix @ solution)
    assert torch.allclose(matrix @ found, matrix @ solution, rtol=1e-8)
    assert (found.norm(dim=(1, 2))[1:] <= solution.norm(dim=(1, 2))[1:]).all()


def test_wrong_input_is_refused(draw_rows):
    covariance, gram = problem(draw_rows, 6, 6, 0)
    with pytest.raises(ValueError, match='found `nan`'):
        pivot_order(covariance * float('nan'), gram)
    with pytest.raises(ValueError, match='finite `rho`'):
        ridge(covariance, -1.)
