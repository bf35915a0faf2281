"""Checkpoints that survive a process being killed while it writes them."""

import copy
import os.path as osp
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmkcr.core import atomic_write
from mmkcr.registry import HOOKS

#: Name of the event that is announced on all processes before one of them saves.
BEFORE_CHECKPOINT = 'before_checkpoint'


@register_backend('mmkcr_atomic', force=True)
class AtomicLocalBackend(LocalBackend):
    """MMEngine's local file backend with atomic writes."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        """Write bytes, so that at any moment the file holds either the old or the new content."""
        with atomic_write(filepath) as temporary:
            temporary.write_bytes(obj)


def point_to(checkpoint: str, work_dir: str) -> None:
    """Make ``--resume`` continue from a checkpoint, which ``last_checkpoint`` then names."""
    AtomicLocalBackend().put(checkpoint.encode(), osp.join(work_dir, 'last_checkpoint'))


@HOOKS.register_module()
class AtomicCheckpointHook(CheckpointHook):
    """``CheckpointHook`` that always leaves a complete checkpoint to resume from.

    The host writes to the final name, and removes the outdated checkpoint before the new one is
    written. Here a checkpoint is written to a temporary file and renamed, then ``last_checkpoint``
    is replaced the same way, and only then are outdated ones removed. This applies to local files;
    with other ``backend_args`` the storage's own guarantees hold.

    Takes the arguments of :class:`mmengine.hooks.CheckpointHook`.
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

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        runner.call_hook(BEFORE_CHECKPOINT)
        # the host removes the former best checkpoint before it writes the new one
        backend, outdated = self.file_backend, []
        self.file_backend = copy.copy(backend)
        self.file_backend.remove = self.file_backend.rmtree = outdated.append
        try:
            super()._save_best_checkpoint(runner, metrics)
        finally:
            self.file_backend = backend
        # only now that the new best one and the pointer to the last one are complete
        best = getattr(self, 'best_ckpt_path_dict', {}).values()
        for path in {*outdated} - {self.last_ckpt, getattr(self, 'best_ckpt_path', None), *best}:
            self._remove(path)

    def _remove(self, path: str) -> None:
        if self.file_backend.isfile(path):
            self.file_backend.remove(path)
        elif self.file_backend.isdir(path):  # deepspeed saves folders
            self.file_backend.rmtree(path)
