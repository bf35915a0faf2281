"""Checkpoints that are complete at any moment, and one more when a run is told to end."""

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmkcr.core import atomic_write
from mmkcr.registry import HOOKS
from .batches import loaders_of

#: Event that is announced on all processes before one of them saves.
BEFORE_CHECKPOINT = 'before_checkpoint'
#: Exit status of a process that ended as it was told, as a shell reports a SIGTERM.
STATUS = 128 + signal.SIGTERM
NAME = 'preempted.pth'


@register_backend('mmkcr_atomic', force=True)
class AtomicLocalBackend(LocalBackend):
    """MMEngine's local file backend with atomic writes."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes, so that at any moment the file holds either the old or the new content."""
        with atomic_write(filepath) as temporary:
            temporary.write_bytes(obj)


def point_to(checkpoint: str, work_dir: str) -> None:
    """Make ``--resume`` continue from a checkpoint, which ``last_checkpoint`` then names."""
    AtomicLocalBackend().put(checkpoint.encode(), Path(work_dir, 'last_checkpoint'))


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """``CheckpointHook`` that always leaves a complete checkpoint to resume from.

    The host removes the outdated checkpoint first, and writes to the final name. Here a checkpoint
    is written to a temporary file and renamed, ``last_checkpoint`` too, and only then are
    outdated ones removed. With ``backend_args`` of others the storage's own guarantees hold.
    """

    def before_train(self, runner: Runner) -> None:
        """Choose the atomic file backend if the target is local."""
        super().before_train(runner)
        if type(self.file_backend) is LocalBackend and self.file_client_args is None:
            self.backend_args = dict(backend='mmkcr_atomic')
            self.file_backend = AtomicLocalBackend()

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        # the host's order is remove, save, point; here: save, point, remove
        outdated = []
        # as in the host: the same step once more changes nothing
        if self.max_keep_ckpts > 0 and step not in list(self.keep_ckpt_ids)[-1:]:
            outdated = [*self.keep_ckpt_ids, step][:-self.max_keep_ckpts]
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        name = self.filename_tmpl.format(step)
        self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
        # before the file is written, as it is part of it
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        runner.call_hook(BEFORE_CHECKPOINT)
        runner.save_checkpoint(
            self.out_dir, name, self.file_client_args, save_optimizer=self.save_optimizer,
            save_param_scheduler=self.save_param_scheduler, meta=meta, by_epoch=self.by_epoch,
            backend_args=self.backend_args, **self.args)
        if is_main_process():
            point_to(self.last_ckpt, runner.work_dir)
            for old in outdated:
                self._remove(self.file_backend.join_path(
                    self.out_dir, self.filename_tmpl.format(old)))
            Path(runner.work_dir, NAME).unlink(missing_ok=True)  # what the run resumed from

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        runner.call_hook(BEFORE_CHECKPOINT)
        # the host removes the former best checkpoint before it writes the new one
        outdated: list[str] = []
        self.file_backend.remove = outdated.append
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            del self.file_backend.remove
        # only now that the new best one and the pointer to the last one are complete
        best = getattr(self, 'best_ckpt_path_dict', {}).values()
        for path in {*outdated} - {self.last_ckpt, getattr(self, 'best_ckpt_path', None), *best}:
            self._remove(path)

    def _remove(self, path: str) -> None:
        if self.file_backend.isfile(path):
            self.file_backend.remove(path)


@HOOKS.register_module()
class PreemptionHook(Hook):
    """Saves and ends a run after the iteration in which a SIGTERM came.

    Batch systems send SIGTERM before they take a machine away. All processes agree on the
    iteration, ``preempted.pth`` is written, ``last_checkpoint`` points to it, and the run ends with
    status 143. With ``--resume`` it continues within the epoch (:class:`ExactResumeHook`, which
    registers this hook). :class:`AtomicCheckpointHook` removes the file after the next ordinary
    checkpoint. A signal during a validation takes effect after it.
    """

    priority = 'LOWEST'  # after all that belongs to an iteration

    def __init__(self) -> None:
        self._before: Any = None  # the former handler
        self._told = False

    def before_train(self, runner: Runner) -> None:
        """Handle the signal, and shield workers from it: a batch system signals them too."""
        # Python allows handlers in the main thread only
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
        for loop in (runner.train_loop, runner.val_loop):  # whose workers may wait meanwhile
            for loader in loaders_of(loop).values():
                keep_workers(loader)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any | None = None,
                         outputs: dict | None = None) -> None:
        """Save and end, by raising ``SystemExit``, if any process was signalled."""
        signalled = torch.tensor(int(self._told))
        all_reduce(signalled, 'max')
        if not signalled:
            return
        runner.call_hook(BEFORE_CHECKPOINT)
        runner.save_checkpoint(runner.work_dir, NAME, by_epoch=False,
                               backend_args=dict(backend='mmkcr_atomic'))
        if is_main_process():
            point_to(os.path.join(runner.work_dir, NAME), runner.work_dir)
        runner.logger.info(f'Told to end: saved iteration {runner.iter + 1} to {NAME}; start again '
                           'with --resume to go on.')
        barrier()  # the first process that exits may take the others down
        self.after_train(runner)
        raise SystemExit(STATUS)

    def after_train(self, runner: Runner) -> None:
        """Restore the former handler."""
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _note(self, *_: Any) -> None:
        self._told = True


def _start_worker(start: Callable | None, worker: int) -> None:
    """Have a worker process obey a SIGTERM only if it comes from its own parent process."""
    # a fork server gives its own mask, not that of the process that asked for a worker
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Thread(target=_obey, daemon=True).start()
    if start is not None:  # the loader's own
        start(worker)


def _obey() -> None:
    # a blocked signal stays pending until this thread takes it, together with its sender; the
    # loader terminates its workers by the same signal, and that one they must obey
    while signal.sigwaitinfo([signal.SIGTERM]).si_pid != os.getppid():
        pass
    os._exit(0)  # SystemExit would only end this thread


def keep_workers(loader: DataLoader) -> None:
    """Let a loader's workers outlive other processes' SIGTERM, so that an iteration can finish."""
    if not loader.num_workers or not hasattr(signal, 'sigwaitinfo'):  # macOS
        return
    loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn)
    start_workers = loader._get_iterator

    def shielded() -> Any:
        # workers inherit what is blocked. They block it themselves too late: a signal may have
        # come, and PyTorch may have started its pool of threads anew, any of which would take it
        resource_tracker.ensure_running()  # where it starts, it unblocks SIGTERM
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            return start_workers()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    loader._get_iterator = shielded
