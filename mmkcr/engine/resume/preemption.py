"""A run that is told to end saves its state first."""

import os
import os.path as osp
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, is_main_process
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmkcr.registry import HOOKS
from .atomic_checkpoint import BEFORE_CHECKPOINT, point_to
from .batches import train_loaders

#: Exit status of a process that ended as it was told, as a shell reports a SIGTERM.
STATUS = 128 + signal.SIGTERM
NAME = 'preempted.pth'


@HOOKS.register_module()
class PreemptionHook(Hook):
    """Saves and ends a run after the iteration in which a signal came.

    Batch systems send SIGTERM before they take a machine away. All processes agree on the
    iteration, ``preempted.pth`` is written, ``last_checkpoint`` points to it, and the run ends with
    status 143. With ``--resume`` it continues within the epoch (:class:`ExactResumeHook`, which
    registers this hook). The file is removed after the next ordinary checkpoint. A signal during a
    validation takes effect after it.

    Args:
        signals (Sequence[str]): Names of the signals. Defaults to ``('SIGTERM', )``.
    """

    priority = 'LOWEST'  # after all that belongs to an iteration

    def __init__(self, signals: Sequence[str] = ('SIGTERM', )) -> None:
        self.signals = [signal.Signals[name] for name in signals]
        self._before: dict[int, Any] = {}
        self._told = False

    def before_train(self, runner: Runner) -> None:
        """Handle the signals, and shield workers from them: a batch system signals them too."""
        # Python allows handlers in the main thread only
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.signals}
        loaders = list(train_loaders(runner).values())
        if runner.val_loop is not None:  # its workers may wait while training runs
            loaders.append(runner.val_loop.dataloader)
        for loader in loaders:
            keep_workers(loader, self.signals)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any | None = None,
                         outputs: dict | None = None) -> None:
        """Save and end if any process was told to.

        Raises:
            SystemExit: The run ends here.
        """
        signalled = torch.tensor(int(self._told))
        all_reduce(signalled, 'max')
        if not signalled:
            self._forget_old(runner)
            return
        runner.call_hook(BEFORE_CHECKPOINT)
        runner.save_checkpoint(runner.work_dir, NAME, by_epoch=False,
                               backend_args=dict(backend='mmkcr_atomic'))
        if is_main_process():
            point_to(osp.join(runner.work_dir, NAME), runner.work_dir)
        runner.logger.info(f'Told to end: saved iteration {runner.iter + 1} to {NAME}; start again '
                           'with --resume to go on.')
        barrier()  # the first process that exits may take the others down
        self.after_train(runner)
        raise SystemExit(STATUS)

    def after_train(self, runner: Runner) -> None:
        """Restore the former handlers."""
        while self._before:
            signal.signal(*self._before.popitem())
        self._forget_old(runner)

    def _note(self, *_: Any) -> None:
        self._told = True

    @staticmethod
    def _forget_old(runner: Runner) -> None:
        """Remove the file that the run resumed from once ``last_checkpoint`` names another."""
        path, pointer = (Path(runner.work_dir, name) for name in (NAME, 'last_checkpoint'))
        # without a pointer the run was killed between the two: the file is all that there is
        if is_main_process() and path.is_file() and pointer.is_file() and \
                Path(pointer.read_text()).name != NAME:
            path.unlink()


def _start_worker(signals: Sequence[int], start: Callable | None, worker: int) -> None:
    """Have a worker process obey signals only if they come from its own parent process."""
    # a fork server gives its own mask, not that of the process that asked for a worker
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    threading.Thread(target=_obey, args=(signals, ), daemon=True).start()
    if start is not None:  # the loader's own
        start(worker)


def _obey(signals: Sequence[int]) -> None:
    # blocked signals stay pending until this thread takes them, together with their sender; the
    # loader terminates its workers by the same signal, and that one they must obey
    while signal.sigwaitinfo(signals).si_pid != os.getppid():
        pass
    os._exit(0)  # SystemExit would only end this thread


def keep_workers(loader: DataLoader, signals: Sequence[int]) -> None:
    """Let a loader's workers outlive other processes' signals, so that an iteration can finish.

    The loader is changed in place, before it is iterated.
    """
    if not loader.num_workers or not hasattr(signal, 'sigwaitinfo'):  # macOS
        return
    loader.worker_init_fn = partial(_start_worker, signals, loader.worker_init_fn)
    start_workers = loader._get_iterator

    def shielded() -> Any:
        # workers inherit what is blocked. They block it themselves too late: a signal may have
        # come, and PyTorch may have started its pool of threads anew, any of which would take it
        resource_tracker.ensure_running()  # where it starts, it unblocks SIGTERM
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            return start_workers()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    loader._get_iterator = shielded
