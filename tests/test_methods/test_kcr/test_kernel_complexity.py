"""The KCR loss against naive autograd and NumPy; its buffers, precision and errors."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mmkcr.functional.kernel import leading_basis, moment_of
from mmkcr.methods.kcr.kernel_complexity import KernelComplexityLoss

shapes = st.tuples(st.integers(4, 40), st.integers(2, 12), st.sampled_from([0.2, 0.5, 0.9]),
                   st.integers(0, 10**6))


def draw_features(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=generator, dtype=torch.float64)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) @ mix


def fitted(features, landmarks=None, **kwargs):
    """A loss after a refresh, in fp64 so that the comparison is of formulas."""
    if kwargs.get('form') == 'sample':
        kwargs['num_samples'] = len(features)
    loss = KernelComplexityLoss(features.shape[1], **kwargs).double()
    loss.refresh_from_features(features, landmarks)
    return loss


def naive_u(features, landmarks, r):
    """The paper's U~ (m x m matrices and all), orthonormalised, as a constant."""
    f, chosen = features.detach().numpy(), features.detach().numpy()[landmarks]
    values, vectors = np.linalg.eigh(chosen @ chosen.T)
    u = f @ chosen.T @ vectors[:, ::-1][:, :r] / np.sqrt(values[::-1][:r])
    values, vectors = np.linalg.eigh(u.T @ u)
    return torch.from_numpy(u @ (vectors / np.sqrt(values)) @ vectors.T)


@given(shapes, st.data())
@settings(max_examples=40, deadline=None)
def test_sample_form_equals_the_naive_objective_with_its_gradient(shape, data):
    n, d, ratio, seed = shape
    m = data.draw(st.integers(min(n, 2 * d), n))
    features = draw_features(n, d, seed).requires_grad_()
    landmarks = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:m]
    loss = fitted(features.detach(), landmarks, form='sample', rank_ratio=ratio, weight=0.7)
    r = int(loss.basis_rank)
    assume(r <= m and np.linalg.cond(features.detach().numpy()[landmarks]) < 1e3)
    u = naive_u(features, landmarks, r)
    kernel = features @ features.T / n
    naive = 0.7 * (kernel.trace() - (u.T @ kernel @ u).trace())
    value = loss(features, torch.arange(n))
    scale = float(kernel.trace().detach())
    assert float(value.detach()) == pytest.approx(float(naive.detach()), rel=1e-5,
                                                  abs=1e-6 * scale)
    ours, expected = (torch.autograd.grad(v, features)[0] for v in (value, naive))
    atol = 1e-6 * float(features.detach().abs().max()) / n
    assert torch.allclose(ours, expected, rtol=1e-5, atol=atol)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_projection_equals_the_naive_objective_with_its_gradient(shape):
    n, d, ratio, seed = shape
    features = draw_features(n, d, seed).requires_grad_()
    loss = fitted(features.detach(), torch.arange(0, n, 2), rank_ratio=ratio, weight=0.2)
    v = loss.basis[:, :int(loss.basis_rank)].detach()
    moment = features.T @ features / n
    naive = 0.2 * (moment.trace() - (v.T @ moment @ v).trace())
    value = loss(features)
    assert float(value.detach()) == pytest.approx(float(naive.detach()), rel=1e-5, abs=1e-9)
    ours, expected = (torch.autograd.grad(x, features)[0] for x in (value, naive))
    assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-9)
    closed = 0.2 * 2 / n * (features - features @ v @ v.T).detach()
    assert torch.allclose(ours, closed, rtol=1e-5, atol=1e-9)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_the_forms_agree_at_a_refresh_with_all_landmarks(shape):
    n, d, ratio, seed = shape
    features = draw_features(n, d, seed).requires_grad_()
    results = []
    for form in ('projection', 'sample'):
        loss = fitted(features.detach(), form=form, rank_ratio=ratio)
        value = loss(features, torch.arange(n))
        results.append((value.detach(), torch.autograd.grad(value, features)[0]))
    (a, grad_a), (b, grad_b) = results
    scale = float(features.detach().square().sum() / n)
    assert torch.allclose(a, b, rtol=1e-6, atol=1e-9 * scale)
    assert torch.allclose(grad_a, grad_b, rtol=1e-6, atol=1e-9 * scale)


@given(shapes)
@settings(max_examples=40, deadline=None)
def test_projection_is_never_negative_and_bounds_the_tnn(shape):
    n, d, ratio, seed = shape
    features = draw_features(n, d, seed)
    stale = fitted(features + draw_features(n, d, seed + 1), rank_ratio=ratio, weight=1.)
    fresh = fitted(features, rank_ratio=ratio, weight=1.)
    eigenvalues = torch.linalg.eigvalsh(moment_of(features)).flip(0).clamp(min=0)
    bound = float(eigenvalues[int(fresh.basis_rank):].sum())
    slack = 1e-9 * float(eigenvalues.sum())
    assert float(fresh(features)) == pytest.approx(bound, rel=1e-6, abs=slack)
    assert float(stale(features)) >= bound - slack
    assert all(float(stale(row[None])) >= 0 for row in features)


def test_the_printed_mini_batch_form_loses_half_of_the_gradients_second_term():
    features = draw_features(50, 6).requires_grad_()
    loss = fitted(features.detach(), form='sample', rank_ratio=0.5, weight=1.)
    inside = (loss.coordinates * (features @ loss.loadings)).sum() / 50
    printed = torch.autograd.grad(features.square().sum() / 50 - inside, features)[0]
    ours = torch.autograd.grad(loss(features, torch.arange(50)), features)[0]
    energy = 2 * features.detach() / 50
    assert torch.allclose(energy - ours, 2 * (energy - printed), atol=1e-9)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('form', ['projection', 'sample'])
def test_autocast_changes_nothing(dtype, form):
    features = draw_features(32, 16).to(dtype)
    loss = KernelComplexityLoss(16, form=form, num_samples=32 if form == 'sample' else None)
    loss.refresh_from_features(features)
    plain = loss(features.float(), torch.arange(32))
    with torch.autocast('cpu', dtype):
        mixed = loss(features, torch.arange(32))
        in_fp32 = loss(features.float(), torch.arange(32))
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, plain) and torch.equal(in_fp32, plain)


def test_scale_free_form_and_log_do_not_depend_on_the_scale():
    features = draw_features(30, 8)
    values = []
    for scale in (1., 1e-3, 1e3):
        loss = fitted(features * scale, torch.arange(15), scale_free=True, weight=1.)
        values.append(float(loss(features * scale)))
        assert float(loss.log_vars()['energy_outside']) == pytest.approx(values[-1])
    assert values == pytest.approx([values[0]] * 3, rel=1e-9)
    assert 0 < values[0] < 1
    plain = fitted(features, torch.arange(15), weight=1.)
    energy = float(features.square().sum()) / 30
    assert float(plain(features)) / energy == pytest.approx(values[0], rel=1e-9)


@pytest.mark.parametrize('form', ['projection', 'sample'])
def test_checkpoints_load_strictly_before_and_after_a_refresh(form):
    def build():
        return KernelComplexityLoss(8, form=form, num_samples=20 if form == 'sample' else None)

    features, indices = draw_features(20, 8), torch.arange(20)
    empty, full, target = build(), build(), build()
    full.refresh_from_features(features, epoch=29)
    target.load_state_dict(empty.state_dict(), strict=True)
    assert not target.ready
    target.load_state_dict(full.state_dict(), strict=True)
    assert target.ready and int(target.basis_epoch) == 29
    assert torch.equal(target(features, indices), full(features, indices))
    target.load_state_dict(empty.state_dict(), strict=True)
    with pytest.raises(RuntimeError, match='expected a basis, found none'):
        target(features, indices)
    with pytest.raises(RuntimeError, match='size mismatch'):
        KernelComplexityLoss(9).load_state_dict(full.state_dict(), strict=False)


def test_fewer_samples_than_features_leave_zero_columns():
    features = draw_features(10, 16)
    loss = KernelComplexityLoss(16, rank_ratio=0.5).double()
    loss.refresh(moment_of(features), n=10)
    assert loss.basis.shape == (16, 8) and int(loss.basis_rank) == 5
    assert loss.basis[:, 5:].abs().max() == 0
    v = leading_basis(moment_of(features), 5)
    expected = 0.2 * (features - features @ v @ v.T).square().sum() / 10
    assert torch.allclose(loss(features), expected, atol=1e-9)


def test_a_refresh_keeps_no_gradient_and_no_history():
    features = draw_features(20, 8).float().requires_grad_()
    loss = KernelComplexityLoss(8)
    loss.refresh_from_features(features)
    assert not any(buffer.requires_grad for buffer in loss.buffers())
    assert not list(loss.parameters())
    assert not loss.log_vars()
    loss(features).backward()
    assert not loss.log_vars()['energy_outside'].requires_grad


def test_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match=r'rank ratio in \(0, 1\], found `2`'):
        KernelComplexityLoss(8, rank_ratio=2)
    with pytest.raises(ValueError, match='found `exact` with `None` in KernelComplexityLoss'):
        KernelComplexityLoss(8, form='exact')
    with pytest.raises(ValueError, match="'sample' with `num_samples`, found `sample` with `None`"):
        KernelComplexityLoss(8, form='sample')
    loss = KernelComplexityLoss(8)
    for wrong in (torch.zeros(8, 9), torch.zeros(1, 2), torch.zeros(8, 0)):
        with pytest.raises(ValueError, match=r'a basis of shape \(8, [12]\), found `'):
            loss.set_basis(wrong)
    assert not loss.ready
    loss.set_basis(torch.eye(8, 1))
    with pytest.raises(ValueError, match=r'features of shape \(4, 8\), found `\(4, 3, 8\)`'):
        loss(torch.zeros(4, 3, 8))
    sample = KernelComplexityLoss(8, form='sample', num_samples=5)
    with pytest.raises(ValueError, match='features of `5` samples, found `6`'):
        sample.refresh_from_features(draw_features(6, 8))
