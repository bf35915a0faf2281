"""InformationBottleneckHook in a real Runner."""

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from mmkcr.functional.clusters import fit_clusters
from mmkcr.functional.information import InformationAccumulator
from mmkcr.methods.dcs.information_bottleneck import (
    InformationBottleneckHook,
    InformationBottleneckLoss,
)
from .kernel_toy import eval_features


class IBRecorder(Hook):
    """Keeps clusters and Q at the start of every epoch."""

    priority = 'VERY_LOW'

    def __init__(self):
        self.epochs = []

    def before_train_epoch(self, runner):
        loss = runner.model.regularizers['ib']
        self.epochs.append((runner.epoch, loss.active, int(loss.refresh_step),
                            loss.centroids.clone(), loss.log_q.clone()))


def hooks(begin=0, **kwargs):
    return [dict(type='mmkcr.InformationBottleneckHook', **kwargs),
            dict(type='mmkcr.WarmupSwitchHook', begin=begin, losses='ib')]


def model(toy, **kwargs):
    config = toy.make_config('x').model
    config.regularizers = dict(ib=dict(type='mmkcr.InformationBottleneckLoss', num_features=6,
                                       num_classes=3, weight=2., **kwargs))
    return config


def train(runner):
    recorder = IBRecorder()
    runner.register_hook(recorder)
    runner.train()
    return recorder.epochs


@pytest.mark.parametrize('interval, begin, max_epochs, refreshed', [
    (1, 2, 5, [2, 3, 4]),  # at the end of the warm-up, then every epoch
    (1, 0, 2, [0, 1]),
    (2, 2, 6, [2, 3, 5]),  # t even, and once before
    (1, 9, 3, []),
])
def test_schedule(build, toy, interval, begin, max_epochs, refreshed):
    runner = build(model=model(toy), hooks=hooks(begin, interval=interval),
                   train_cfg=dict(by_epoch=True, max_epochs=max_epochs, val_interval=99))
    epochs = train(runner)
    assert [epoch for epoch, _, at, *_ in epochs if at == epoch] == refreshed
    assert [active for _, active, *_ in epochs] == [e >= begin for e in range(max_epochs)]


@pytest.mark.parametrize('samples', [None, 11])
@pytest.mark.parametrize('normalize', [True, False])
def test_clusters_and_q_are_those_of_the_weights_before_the_epoch(build, toy, samples, normalize):
    runner = toy.refresh_only(build(model=model(toy, normalize=normalize),
                                    hooks=hooks(samples=samples)))
    loss = runner.model.regularizers['ib']
    hook = next(h for h in runner.hooks if type(h).__name__ == 'InformationBottleneckHook')
    features, _ = eval_features(runner)
    chosen = features if samples is None else features[hook.draw(11, 0)]
    expected = fit_clusters(chosen, 3, 0, normalize)
    assert torch.allclose(loss.centroids, expected, atol=1e-5)
    x = features.double().numpy()
    x = x / np.linalg.norm(x, axis=1, keepdims=True) if normalize else x
    phi = np.exp(-((x[:, None] - expected.double().numpy()[None])**2).sum(-1))
    phi = phi / phi.sum(1, keepdims=True)
    labels = np.arange(24) % 3
    q = np.stack([phi[labels == y].sum(0) + 1e-3 for y in range(3)])
    assert np.allclose(loss.log_q.exp().numpy(), q / q.sum(1, keepdims=True), atol=1e-5)


def test_the_loss_of_an_epoch_has_one_q(build, toy, monkeypatch):
    seen, forward = [], InformationBottleneckLoss.forward
    monkeypatch.setattr(InformationBottleneckLoss, 'forward', lambda self, f, y: seen.append(
        (self.log_q.clone(), f.shape, y.clone())) or forward(self, f, y))
    runner = build(model=model(toy), hooks=hooks(1))
    epochs = train(runner)
    assert len(seen) == 2 * 6  # two of three epochs, of six batches
    for epoch in (1, 2):
        for log_q, shape, labels in seen[6 * (epoch - 1):6 * epoch]:
            assert torch.equal(log_q, epochs[epoch][4]) and shape == (4, 6)
            assert labels.shape == (4, ) and labels.dtype == torch.int64
    assert not torch.equal(seen[0][0], seen[-1][0])


def test_the_reported_ib_is_that_of_the_whole_set(build, toy):
    runner = toy.refresh_only(build(model=model(toy, input_features=4), hooks=hooks(samples=13)))
    loss, (features, inputs) = runner.model.regularizers['ib'], eval_features(runner)
    sums = InformationAccumulator(3, 3, 3)
    unit = torch.nn.functional.normalize(inputs, dim=1)
    log_inputs = (-torch.cdist(unit, loss.input_centroids).square()).log_softmax(1)
    sums.add(loss.log_phi(features), torch.arange(24) % 3, log_inputs)
    scalars = runner.message_hub.log_scalars
    for key, value in sums.values().items():
        if key != 'n':
            assert scalars[f'train/ib_{key}'].current() == pytest.approx(value, abs=1e-5), key
    assert scalars['train/ib_ib'].current() <= scalars['train/ib_ibb'].current()
    before = loss.input_centroids.clone()
    torch.nn.init.normal_(runner.model.architecture.backbone[0].weight)
    loss.refresh_step.fill_(-1)
    toy.refresh_only(runner)
    assert torch.equal(before, loss.input_centroids)  # inputs do not change


def test_bad_samples_and_another_regulariser_are_refused(build, toy):
    with pytest.raises(ValueError, match='samples >= 1, found `0`'):
        InformationBottleneckHook(samples=0)
    with pytest.raises(TypeError, match='an InformationBottleneckLoss .* found `KernelComplexity'):
        toy.refresh_only(build(hooks=[dict(type='mmkcr.InformationBottleneckHook', loss='kcr')]))
