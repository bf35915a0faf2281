"""KernelComplexityMetric on its own: streaming, padding, landmarks, bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmkcr.functional.kernel import approximate_tnn, kernel_complexity, moment_of
from mmkcr.methods.kcr import metric as module
from mmkcr.methods.kcr.metric import KernelComplexityMetric, landmark_mask


def samples(n, d=5, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [dict(features=torch.randn(d, generator=generator) * torch.arange(1., d + 1),
                 pred_score=torch.randn(classes, generator=generator).softmax(0),
                 gt_label=torch.tensor([i % classes])) for i in range(n)]


def evaluate(metric, data, size=None, batch=4):
    for start in range(0, len(data), batch):
        metric.process(None, data[start:start + batch])
    return metric.evaluate(len(data) if size is None else size)


@given(st.integers(2, 40), st.integers(1, 9), st.sampled_from([0.2, 0.5, 1.0]))
@settings(max_examples=30, deadline=None)
def test_values_equal_the_naive_ones_for_any_batch_size(n, batch, ratio):
    data = samples(n, seed=n)
    result = evaluate(KernelComplexityMetric(landmark_ratio=ratio), data, batch=batch)
    features = torch.stack([s['features'] for s in data]).double().numpy()
    values = np.sort(np.linalg.eigvalsh(features @ features.T / n))[::-1].clip(0)
    kc = min(h / n + np.sqrt(values[h:].sum() / n) for h in range(min(n, 5) + 1))
    assert result['kernel/kc'] == pytest.approx(kc, rel=1e-5, abs=1e-6)
    chosen = landmark_mask(range(n), ratio, 0)
    assert result['kernel/landmarks'] == chosen.sum()
    if chosen.any():
        tensor = torch.from_numpy(features)
        approximate = approximate_tnn(moment_of(tensor), moment_of(tensor[chosen]))
        expected, _ = kernel_complexity(approximate, n)
        assert result['kernel/a_kc'] == pytest.approx(expected, rel=1e-6)
    if ratio == 1:
        assert result['kernel/a_kc'] == pytest.approx(result['kernel/kc'], rel=1e-6, abs=1e-7)


def test_bounds():
    data = samples(30)
    result = evaluate(KernelComplexityMetric(x=2.), data)
    error = sum(float((s['pred_score'] - torch.eye(3)[i % 3]).square().sum())
                for i, s in enumerate(data)) / 30
    assert result['kernel/squared_error'] == pytest.approx(error, rel=1e-6)
    for name in ('kc', 'a_kc'):
        half = result[f'kernel/{name}'] + 2. / 30
        prefix = 'kernel/kcr' if name == 'kc' else 'kernel/a_kcr'
        assert result[f'{prefix}_lower'] == pytest.approx(error - half)
        assert result[f'{prefix}_upper'] == pytest.approx(error + half)


@given(st.integers(1, 5), st.integers(5, 30))
@settings(max_examples=30, deadline=None)
def test_padding_of_the_distributed_sampler_is_not_counted(world, n):
    data = samples(n, seed=n)
    total = -(-n // world) * world
    padded = (data * 2)[:total]
    moments, errors = [], []
    for rank in range(world):
        metric = KernelComplexityMetric(landmark_ratio=0.5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, 'get_dist_info', lambda rank=rank: (rank, world))
            patch.setattr(metric, 'compute_metrics', lambda results, metric=metric: moments.append(
                (metric._moment, metric._landmarks)) or errors.append(metric._error) or {})
            evaluate(metric, padded[rank::world], n, batch=3)
    whole, chosen = moments[0]
    for rank in moments[1:]:  # as `all_reduce` adds them up
        for one, other in zip((whole, chosen), rank):
            one.total += other.total
            one.count += other.count
    features = torch.stack([s['features'] for s in data])
    assert whole.count == n
    assert torch.allclose(whole.moment(), moment_of(features), atol=1e-9)
    mask = landmark_mask(range(n), 0.5, 0)
    assert chosen.count == mask.sum()  # the same landmarks, whatever the number of ranks
    one = evaluate(KernelComplexityMetric(), data)
    assert sum(errors) / n == pytest.approx(one['kernel/squared_error'])


def test_landmarks_are_a_fair_seeded_draw():
    mask = landmark_mask(range(20000), 0.3, 7)
    assert abs(mask.mean() - 0.3) < 0.01
    assert abs(np.corrcoef(mask[:-1], mask[1:])[0, 1]) < 0.02
    assert (mask == landmark_mask(range(20000), 0.3, 7)).all()
    assert abs(np.corrcoef(mask, landmark_mask(range(20000), 0.3, 8))[0, 1]) < 0.02
    assert landmark_mask(range(1000), 1.0, 0).all()


def test_a_second_loop_starts_from_nothing_and_memory_is_bounded():
    metric, data = KernelComplexityMetric(), samples(50)
    first = evaluate(metric, data)
    assert evaluate(metric, data) == first
    for start in range(0, 50, 5):
        metric.process(None, data[start:start + 5])
        assert len(metric._tail) == 1 and not metric.results


def test_one_hot_scores_and_no_scores():
    data = samples(12)
    expected = evaluate(KernelComplexityMetric(), data)
    for i, sample in enumerate(data):
        sample['gt_score'] = torch.eye(3)[i % 3]
        del sample['gt_label']
    assert evaluate(KernelComplexityMetric(), data) == pytest.approx(expected)
    for sample in data:
        del sample['pred_score']
    result = evaluate(KernelComplexityMetric(score_key=None), data)
    assert set(result) == {f'kernel/{k}' for k in ('kc', 'a_kc', 'tnn', 'n', 'landmarks')}


def test_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match='add `FeatureTapHook` to custom_hooks'):
        KernelComplexityMetric().process(None, [dict(pred_score=torch.ones(3))])
    with pytest.raises(ValueError, match='fields `pred_score` and `gt_label`'):
        KernelComplexityMetric().process(None, [dict(features=torch.ones(3))])
    with pytest.raises(ValueError, match='found `0` in KernelComplexityMetric'):
        KernelComplexityMetric(landmark_ratio=0)
    with pytest.raises(ValueError, match='at least one data sample'):
        KernelComplexityMetric().evaluate(0)
