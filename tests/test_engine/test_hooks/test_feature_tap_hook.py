"""FeatureTapHook and KernelComplexityMetric in a real Runner."""

import pytest
import torch

from mmkcr.functional.kernel import kernel_complexity, moment_of, spectrum, tails


def no_hooks_left(model):
    return not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize('wrapped', [True, False])
def test_metrics_equal_those_of_the_collected_features(build, wrapped):
    model = dict() if wrapped else dict(model=dict(type='ToyTask'))
    runner = build(**model)
    metrics = runner.val()
    features, scores, labels = runner.val_loop.evaluator.metrics[0].kept
    values, _ = spectrum(moment_of(features))
    kc, _ = kernel_complexity(tails(values), 13)
    assert metrics['kernel/n'] == len(features) == 13
    assert metrics['kernel/kc'] == pytest.approx(kc, rel=1e-9)
    assert metrics['kernel/tnn'] == pytest.approx(float(values[2:].sum()), rel=1e-9)
    error = (scores - torch.eye(3)[labels[:, 0]]).square().sum() / 13
    assert metrics['kernel/squared_error'] == pytest.approx(float(error), rel=1e-5)
    assert metrics['kernel/a_kc'] >= metrics['kernel/kc']
    assert no_hooks_left(runner.model)


def test_features_are_those_of_the_named_layer(build):
    hooks = [dict(type='mmkcr.FeatureTapHook', layer='head', key='logits')]
    metric = dict(type='mmkcr.KernelComplexityMetric', score_key='logits')
    runner = build(hooks=hooks, val_evaluator=[dict(type='KeepSamples'), metric])
    metrics = runner.val()
    features, _, labels = runner.val_loop.evaluator.metrics[0].kept
    with torch.no_grad():
        logits = runner.model.architecture.head(features)
    error = (logits - torch.eye(3)[labels[:, 0]]).square().sum() / 13
    assert metrics['kernel/squared_error'] == pytest.approx(float(error), rel=1e-5)


def test_hooks_exist_during_the_loop_only(build):
    runner = build(hooks=[dict(type='mmkcr.NystromRefreshHook')])
    assert no_hooks_left(runner.model)
    runner.train()
    assert no_hooks_left(runner.model)
    runner.call_hook('before_val_epoch')
    assert not no_hooks_left(runner.model)
    runner.call_hook('before_val_epoch')  # an interrupted loop, and a second one
    runner.call_hook('after_val_epoch', metrics={})
    assert no_hooks_left(runner.model)


def test_a_model_that_predicts_no_samples_is_refused(build):
    runner = build()
    runner.model.architecture.register_forward_hook(lambda *_: torch.zeros(4, 3))
    with pytest.raises(TypeError, match='list of `4` data samples'):
        runner.val()
