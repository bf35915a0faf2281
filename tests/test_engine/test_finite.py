"""Losses and weights that are no numbers stop a run, and are not saved."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch import nn

from mmkcr.core import NonFiniteError
from mmkcr.engine.checks import FiniteHook

NAN, INF = float('nan'), float('inf')


class Scaler:
    """As ``torch.amp.GradScaler``: halved where it skips."""

    def __init__(self, enabled=True):
        self.scale, self.enabled = 2.**16, enabled

    def get_scale(self):
        return self.scale

    def is_enabled(self):
        return self.enabled


def runner(scaler=None):
    model = nn.BatchNorm1d(2)
    model.register_buffer('mask', torch.tensor([0., -INF]))
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), 0.1))
    if scaler is not None:
        wrapper.loss_scaler = scaler
    return SimpleNamespace(model=model, optim_wrapper=wrapper, iter=6)


@pytest.mark.parametrize('outputs, name', [
    (dict(loss=torch.tensor(NAN), loss_cls=torch.tensor(1.), loss_kcr=torch.tensor(NAN)),
     'nan in `loss_kcr`'),
    (dict(loss=torch.tensor(INF)), 'inf in `loss`'), (dict(loss=-INF), 'inf in `loss`'),
    ({'architecture/loss': torch.tensor(NAN), 'architecture/loss_price': torch.tensor(NAN)},
     'nan in `architecture/loss_price`')])
def test_the_first_loss_that_is_none_stops_with_step_and_term(outputs, name):
    hook, run = FiniteHook(), runner()
    hook.before_train(run)
    hook.after_train_iter(run, 0, outputs=dict(loss=torch.tensor(1.), grad_norm=torch.tensor(INF)))
    with pytest.raises(NonFiniteError, match=f'finite losses at iteration 7, found .*{name}'):
        hook.after_train_iter(run, 0, outputs=outputs)


@pytest.mark.parametrize('loss', [1., NAN])
@pytest.mark.parametrize('wrapped', [False, True])
def test_skips_of_a_scaler_are_bounded(loss, wrapped):
    hook, scaler = FiniteHook(patience=3), Scaler()
    run = runner(scaler)
    good = run.optim_wrapper.optimizer
    if wrapped:
        run.optim_wrapper = OptimWrapperDict(weights=run.optim_wrapper,
                                             architecture=runner().optim_wrapper)
    hook.before_train(run)

    def skip():
        scaler.scale /= 2
        hook.after_train_iter(run, 0, outputs=dict(loss=torch.tensor(loss)))

    for _ in range(2):  # a good step in between begins anew
        for _ in range(3):
            skip()
        good.step()
        hook.after_train_iter(run, 0, outputs=dict(loss=torch.tensor(1.)))
    for _ in range(3):
        skip()
    with pytest.raises(NonFiniteError, match='expected finite (gradients|losses) at iteration 7'):
        skip()


def test_skips_are_counted_where_gradients_are_accumulated():
    """Iterations between two steps, in which no scale can fall, do not begin anew."""
    hook, scaler = FiniteHook(patience=3), Scaler()
    run = runner(scaler)
    run.optim_wrapper._accumulative_counts = 2
    hook.before_train(run)

    def two_iterations(skips):
        for count in (1, 2):
            run.optim_wrapper._inner_count = count
            if count == 2 and skips:
                scaler.scale /= 2
            elif count == 2:
                run.optim_wrapper.optimizer.step()
            hook.after_train_iter(run, 0, outputs=dict(loss=torch.tensor(1.)))

    for skips in (True, True, True, False, True, True, True):  # a step begins anew
        two_iterations(skips)
    with pytest.raises(NonFiniteError, match='expected finite gradients'):
        two_iterations(True)


def test_skips_under_a_scale_that_is_a_constant_are_bounded():
    """The host sets it back after every step, so it never falls."""
    hook, run = FiniteHook(patience=3), runner(Scaler())
    hook.before_train(run)
    good = dict(loss=torch.tensor(1.))
    for _ in range(2):
        for _ in range(3):
            hook.after_train_iter(run, 0, outputs=good)
        run.optim_wrapper.optimizer.step()
        hook.after_train_iter(run, 0, outputs=good)
    for _ in range(3):
        hook.after_train_iter(run, 0, outputs=good)
    with pytest.raises(NonFiniteError, match='found none in 4 iterations: the loss scale is 65536'):
        hook.after_train_iter(run, 0, outputs=good)
    hook.after_train(run)
    assert not run.optim_wrapper.optimizer._optimizer_step_post_hooks


def test_a_scaler_that_is_off_skips_nothing():
    hook, run = FiniteHook(), runner(Scaler(False))
    hook.before_train(run)
    with pytest.raises(NonFiniteError):
        hook.after_train_iter(run, 0, outputs=dict(loss=torch.tensor(NAN)))


@pytest.mark.parametrize('part, name', [
    ('state_dict', 'weight'), ('state_dict', 'running_var'), ('ema_state_dict', 'module.bias')])
def test_nothing_that_is_no_number_is_saved(part, name):
    hook, run = FiniteHook(), runner()
    hook.before_train(run)
    state = run.model.state_dict()
    checkpoint = dict(state_dict=state, ema_state_dict={
        **{f'module.{key}': value.clone() for key, value in state.items()},
        'steps': torch.tensor(3)})
    hook.before_save_checkpoint(run, checkpoint)  # the mask is -inf by design
    checkpoint[part][name][0] = NAN
    with pytest.raises(NonFiniteError, match=f'weights to save .* `{name}` of `{part}`'):
        hook.before_save_checkpoint(run, checkpoint)


def test_patience():
    with pytest.raises(ValueError, match='`patience` of at least 0, found -1'):
        FiniteHook(-1)
