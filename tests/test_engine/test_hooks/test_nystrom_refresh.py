"""NystromRefreshHook in a real Runner."""

import copy
import random

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from mmkcr.functional.kernel import leading_basis, moment_of
from .kernel_toy import Watch, eval_features


class Recorder(Hook):
    """Keeps a copy of the basis at the start of every epoch, after the other hooks."""

    priority = 'VERY_LOW'

    def before_train_epoch(self, runner):
        loss = runner.model.regularizers['kcr']
        self.epochs = getattr(self, 'epochs', []) + [
            (runner.epoch, loss.active, int(loss.basis_epoch), loss.basis.clone())]


def refresh(**kwargs):
    return dict(type='mmkcr.NystromRefreshHook', **kwargs)


def warmup(**kwargs):
    return dict(type='mmkcr.WarmupSwitchHook', **kwargs)


def train(runner):
    recorder = Recorder()
    runner.register_hook(recorder)
    runner.train()
    return recorder.epochs


def basis_of(runner):
    return runner.model.regularizers['kcr'].basis


def assert_spans(basis, features):
    """It is the leading subspace of these features."""
    expected = leading_basis(moment_of(features), 3)
    assert torch.allclose(basis.double(), expected, atol=1e-5)


def hook_of(runner):
    return next(hook for hook in runner.hooks if hasattr(hook, '_draw'))


def in_sample_form(toy):
    model = toy.make_config('x').model
    model.regularizers.kcr.update(form='sample', num_samples=24)
    return model


@pytest.mark.parametrize('interval, begin, max_epochs, refreshed', [
    (2, 0, 5, [0, 1, 3]),  # t = 1 (first active), t = 2 and t = 4, with t counted from 1
    (3, 4, 6, [2, 5]),     # t = 3 during warm-up, so a basis exists at t = 5
    (30, 2, 4, [2]),       # once when the term first becomes active
    (30, 9, 3, []),
])
def test_schedule(build, interval, begin, max_epochs, refreshed):
    runner = build(hooks=[refresh(interval=interval), warmup(begin=begin)],
                   train_cfg=dict(by_epoch=True, max_epochs=max_epochs, val_interval=99))
    epochs = train(runner)
    assert [epoch for epoch, _, at, _ in epochs if at == epoch] == refreshed
    assert [active for _, active, _, _ in epochs] == [e >= begin for e in range(max_epochs)]


def test_schedule_by_iteration(build):
    """The same rule; its steps are iterations."""
    watch = Watch(lambda runner, _: int(
        runner.model.regularizers['kcr'].basis_epoch) == runner.iter)
    runner = build(hooks=[refresh(interval=4, by_epoch=False), warmup(begin=1, by_epoch=False)],
                   train_cfg=dict(by_epoch=False, max_iters=6, val_interval=99))
    runner.register_hook(watch)
    runner.train()
    assert [place for place, (_, refreshed) in enumerate(watch.seen) if refreshed] == [1, 3]


@pytest.mark.parametrize('solver, landmarks', [('nystrom', None), ('exact', None),
                                               ('exact', 10), ('nystrom', 24)])
def test_basis_is_that_of_eval_features_with_test_transforms(build, toy, solver, landmarks):
    runner = toy.refresh_only(build(hooks=[refresh(solver=solver, landmarks=landmarks)]))
    assert_spans(basis_of(runner), eval_features(runner)[0])


def test_landmarks_are_a_seeded_draw_without_replacement(build, toy):
    bases = []
    for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0)):
        runner = build(hooks=[refresh(landmarks=9, seed=seed)])
        toy.refresh_only(runner)
        drawn = hook_of(runner)._draw(epoch)
        assert len(set(drawn.tolist())) == 9 and int(drawn.max()) < 24
        bases.append(drawn.tolist())
    assert bases[0] == bases[1] and bases[0] != bases[2] and bases[0] != bases[3]
    assert_spans(basis_of(runner), eval_features(runner)[0][hook_of(runner)._draw(0)])


def test_a_refresh_disturbs_neither_modes_nor_random_states(build, toy):
    runner = build(hooks=[refresh()])
    runner.model.train()
    runner.model.architecture.head.eval()  # as a frozen stage is
    modes = [module.training for module in runner.model.modules()]
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    weights = copy.deepcopy(runner.model.architecture.state_dict())
    toy.refresh_only(runner)
    assert [module.training for module in runner.model.modules()] == modes
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all() and states[2] == random.getstate()
    assert all(torch.equal(weights[k], v)
               for k, v in runner.model.architecture.state_dict().items())
    assert runner.train_dataloader.dataset.pipeline.transforms[0].noise == 5.
    assert not runner.model.architecture.backbone._forward_hooks


@pytest.mark.parametrize('ema', [[], [dict(type='EMAHook', momentum=0.1)],
                                 [dict(type='EMAHook', momentum=0.1, update_buffers=True)]])
def test_resumed_run_has_the_bases_of_the_unbroken_one(build, tmp_path, ema):
    hooks = [refresh(interval=2, landmarks=12), dict(type='mmkcr.ExactResumeHook'), *ema]
    cfg = dict(hooks=hooks, train_cfg=dict(by_epoch=True, max_epochs=4, val_interval=9))
    whole = train(build(tmp_path / 'whole', **cfg))
    resumed = build(tmp_path / 'resumed', resume=True,
                    load_from=str(tmp_path / 'whole' / 'epoch_2.pth'), **cfg)
    for (epoch, _, at, basis), reference in zip(train(resumed), whole[2:], strict=True):
        assert (epoch, at) == (reference[0], reference[2])
        assert torch.equal(basis, reference[3])


def test_with_ema_the_features_are_those_of_the_online_weights(build, toy):
    runner = build(hooks=[refresh(interval=3), dict(type='EMAHook', momentum=1e-3)])
    hook, online = hook_of(runner), []
    before = hook.refresh
    hook.refresh = lambda runner: online.append(eval_features(runner)[0]) or before(runner)
    epochs = train(runner)
    assert len(online) == 2  # the first epoch, and t = 3
    assert_spans(epochs[2][3], online[1])


def test_a_basis_of_this_very_epoch_is_kept(build, toy):
    runner = toy.refresh_only(build(hooks=[refresh(interval=1)]))
    before, hook = basis_of(runner).clone(), hook_of(runner)
    torch.nn.init.normal_(runner.model.architecture.backbone[0].weight)
    hook.before_train_epoch(runner)  # as after a resume in the middle of the epoch
    assert torch.equal(basis_of(runner), before)
    hook.before_train(runner)  # a new run that starts from this checkpoint
    hook.before_train_epoch(runner)
    assert not torch.equal(basis_of(runner), before)


def test_sample_form(build, toy, monkeypatch):
    """Its value after a refresh; it trains with the samples' own indices."""
    runner = toy.refresh_only(build(model=in_sample_form(toy), hooks=[refresh()]))
    loss = runner.model.regularizers['kcr']
    features = eval_features(runner)[0]
    value = loss(features, torch.arange(24))
    residual = features - features @ loss.basis @ loss.basis.T
    assert float(value) == pytest.approx(0.2 * float(residual.square().sum()) / 24, rel=1e-4)
    seen, sample = [], type(loss)._sample
    monkeypatch.setattr(type(loss), '_sample', lambda self, features, indices: seen.append(
        indices.tolist()) or sample(self, features, indices))
    runner.train()
    assert len(seen) == 18
    assert sorted(sum(seen[:6], [])) == list(range(24))  # every sample once an epoch


def test_sample_form_refuses_sets_that_do_not_number_their_samples(build, toy):
    """Of two joined sets, samples of the second had the rows of the first."""
    def of(dataset, number):
        config = toy.make_config('x')
        config.model.regularizers.kcr.update(form='sample', num_samples=number)
        loader = dict(config.train_dataloader, dataset=dataset(config.train_dataloader.dataset))
        toy.refresh_only(build(train_dataloader=loader, model=config.model, hooks=[refresh()]))

    of(lambda own: dict(type='RepeatDataset', times=2, dataset=own), 48)  # copies have equal rows
    of(lambda own: dict(type='mmkcr.ClassSubset', num_classes=2, dataset=own), 16)
    with pytest.raises(ValueError, match=r"form 'sample' of `kcr`, found `sample_idx` \d+ at"):
        of(lambda own: dict(type='ConcatDataset', datasets=[own, own]), 48)


def test_the_view_goes_through_wrappers(build, toy):
    loader = toy.make_config('x').train_dataloader
    loader.dataset = dict(type='ConcatDataset', datasets=[
        dict(type='RepeatDataset', times=2, dataset=loader.dataset), loader.dataset])
    runner = toy.refresh_only(build(train_dataloader=loader, hooks=[refresh()]))
    assert_spans(basis_of(runner), eval_features(runner)[0].repeat(3, 1))
    inner = runner.train_dataloader.dataset.datasets[0].dataset
    assert inner.pipeline.transforms[0].noise == 5.


def test_own_transforms(build, toy):
    """Those of the training set's samples beside those of validation."""
    pipeline = toy.make_config('x').val_dataloader.dataset.pipeline
    runner = toy.refresh_only(build(hooks=[refresh(pipeline=pipeline)]))
    assert_spans(basis_of(runner), eval_features(runner)[0])


@pytest.mark.parametrize('kwargs, message', [
    (dict(landmarks=25), 'landmarks as the rank 3 and at most n = 24, found `25`'),
    (dict(landmarks=2), 'landmarks as the rank 3 and at most n = 24, found `2`'),
    (dict(landmarks=0), 'landmarks as the rank 3 and at most n = 24, found `0`'),
    (dict(loss='ib'), r"one of the regularizers \['kcr'\] of RegularizedModel, found `ib`"),
    (dict(solver='svd'), "solver 'nystrom' or 'exact', found `svd`"),
    (dict(interval=0), 'interval >= 1, found `0`'),
])
def test_bad_input_is_one_sentence_before_any_training(build, toy, kwargs, message):
    with pytest.raises(ValueError, match=message):
        toy.refresh_only(build(hooks=[refresh(**kwargs)]))


def test_two_processes_give_the_state_and_the_values_of_one(build, toy, two_processes, tmp_path):
    def job(rank):
        runner = toy.refresh_only(build(
            tmp_path / str(rank), **toy.both(), launcher='pytorch', model_wrapper_cfg=dict(
                type='MMDistributedDataParallel', device_ids=None)))
        buffers = runner.model.module.regularizers.named_buffers()
        return {name: buffer.clone() for name, buffer in buffers}, runner.val()

    (state, metrics), (other, _) = two_processes(job)
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    runner = toy.refresh_only(build(**toy.both()))
    for name, buffer in runner.model.regularizers.named_buffers():
        assert torch.allclose(buffer, state[name], atol=1e-6), name
    one = runner.val()
    for name in ('kernel', 'information'):
        assert one[f'{name}/n'] == metrics[f'{name}/n'] == 13  # odd: one is padding
    assert one.keys() == metrics.keys()
    for key, value in one.items():
        assert metrics[key] == pytest.approx(value, rel=1e-6), key
