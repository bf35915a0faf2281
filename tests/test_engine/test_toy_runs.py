"""What happens to runs: other batch sizes, signals with a validation's workers, best weights."""

import os
import signal
import subprocess
import threading
import time
from multiprocessing import active_children

import pytest
import torch
from mmengine.hooks import Hook
from torch.utils.data._utils.worker import _worker_loop


class Seen(Hook):
    """Batches of every epoch, and when it was validated."""

    def before_train(self, runner):
        self.epochs, self.validated = {}, {}

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        self.epochs[runner.epoch] = self.epochs.get(runner.epoch, 0) + 1

    def after_val_epoch(self, runner, metrics=None):
        self.validated[runner.epoch] = runner.iter


@pytest.fixture
def runner_of(build, toy):
    """``runner_of(epochs, batch_size, hooks, workers, **overrides)`` of the toy task alone."""
    def make(epochs, batch_size=4, hooks=(), workers=0, **overrides):
        config = toy.make_config('unused')
        loaders = {f'{part}_dataloader': config[f'{part}_dataloader'] for part in ('train', 'val')}
        for loader in loaders.values():
            loader.update(num_workers=workers, persistent_workers=workers > 0)
        loaders['train_dataloader'].batch_size = batch_size
        runner = build(**{**loaders, **dict(
            model=dict(type='ToyTask'), hooks=[dict(type='mmkcr.ExactResumeHook'), *hooks],
            train_cfg=dict(by_epoch=True, max_epochs=epochs, val_interval=1)), **overrides})
        seen = Seen()
        runner.register_hook(seen)
        return runner, seen

    return make


@pytest.mark.parametrize('accumulated', [1, 2])
def test_epochs_behind_a_change_of_the_batch_size_are_whole(accumulated, runner_of):
    """The run that is resumed with other batches, and the one that is resumed from it."""
    wrapper = dict(optimizer=dict(type='SGD', lr=0.01), accumulative_counts=accumulated)
    runner_of(2, optim_wrapper=wrapper)[0].train()
    for epochs, expected in ((3, {2: 3}), (6, {3: 3, 4: 3, 5: 3})):
        runner, seen = runner_of(epochs, 8, resume=True, optim_wrapper=wrapper)
        runner.train()
        assert seen.epochs == expected and runner.iter == 3 * epochs
        assert {epoch: at for epoch, at in seen.validated.items() if epoch - 1 in expected} == {
            epoch + 1: 3 * (epoch + 1) for epoch in expected}


@pytest.mark.parametrize('by_epoch', [True, False])
def test_a_set_that_is_smaller_than_a_batch_is_refused(by_epoch, runner_of):
    """The host trains nothing, or ends in a `StopIteration` without a word."""
    loop = dict(max_epochs=2) if by_epoch else dict(max_iters=4)
    runner, _ = runner_of(2, 32, train_cfg=dict(by_epoch=by_epoch, val_interval=1, **loop))
    runner._train_dataloader['drop_last'] = True
    with pytest.raises(ValueError, match='at least one batch of 32 images in .*, found 24 images'):
        runner.train()


class Told(Hook):
    """A batch system: the signal goes to the workers too."""

    def __init__(self, where):
        self.where = where

    def signal(self):
        # from another process: workers obey their own parent
        told = [worker.pid for worker in active_children()] + [os.getpid()]
        subprocess.run(['sh', '-c', f'kill -TERM {" ".join(map(str, told))}'], check=True)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.where == 'train' and runner.iter == 13:
            self.signal()

    def after_val_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self.where == 'val' and batch_idx == 0:
            self.signal()


def loop_of_many_threads(*args):
    """What libraries start in a forked worker, such as PyTorch its pool of threads."""
    for _ in range(8):
        threading.Thread(target=time.sleep, args=[60], daemon=True).start()
    _worker_loop(*args)


@pytest.mark.skipif(not hasattr(signal, 'sigwaitinfo'), reason='workers cannot see senders')
@pytest.mark.parametrize('where', ['train', 'val'])
def test_workers_of_a_validation_outlive_a_signal_too(where, runner_of, tmp_path, monkeypatch):
    monkeypatch.setattr('torch.utils.data._utils.worker._worker_loop', loop_of_many_threads)
    runner, _ = runner_of(3, workers=1)
    runner.register_hook(Told(where))
    with pytest.raises(SystemExit) as stop:
        runner.train()
    assert stop.value.code == 143 and (tmp_path / 'preempted.pth').is_file()
    for loader in (runner.train_dataloader, runner.val_loop.dataloader):
        if loader._iterator is not None:  # or the garbage collector waits for it, 5 s each
            loader._iterator._shutdown_workers()


@pytest.mark.parametrize('gone', [('optimizer', ), ('optimizer', 'meta')])
def test_best_weights_are_no_state_to_resume_from(gone, runner_of, tmp_path):
    """MMEngine would begin optimizer and schedules anew without a word."""
    runner, _ = runner_of(1)
    runner.train()
    state = torch.load(tmp_path / 'epoch_1.pth', weights_only=False)
    torch.save({key: value for key, value in state.items() if key not in gone},
               tmp_path / 'best.pth')
    again, _ = runner_of(2, resume=True, load_from=str(tmp_path / 'best.pth'),
                         hooks=[dict(type='mmkcr.CheckpointGuardHook')])
    with pytest.raises(ValueError, match='the state of the optimizer in `.*best.pth` to resume'):
        again.train()
