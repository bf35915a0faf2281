"""Runs that were stopped go on as if they had not been."""

from typing import Dict, Optional

from mmengine.dist import broadcast_object_list, get_rank, get_world_size
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from mmkcr.engine.endless import EndlessBatches
from mmkcr.engine.reproducible import (
    derive_seed,
    make_reproducible,
    seed_everything,
    source_sampler,
)
from mmkcr.models.utils import unwrap
from mmkcr.registry import HOOKS
from .atomic_checkpoint import AtomicCheckpointHook
from .sync_batch_norm import SyncBatchNormHook

_KEY = 'exact_resume'


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Makes a resumed run give the numbers of the unbroken one.

    MMEngine restores weights, optimizers, schedules and logs, but no random
    state. This hook makes every random draw a function of the seed and of
    where the run is, so that there is no state to restore:

    - a sample's augmentation depends on (seed, epoch, position in the epoch):
      on no worker and on no number of ranks
      (:func:`~mmkcr.engine.reproducible.make_reproducible`);
    - an iteration-based run goes to its sample by drawing indices, without loading what it
      passes over (:class:`~mmkcr.engine.endless.EndlessBatches`);
    - mixup, dropout and stochastic depth in the main process depend on
      (seed, iteration, rank). They differ between ranks, on purpose: with
      them, two processes are not one with twice the batch.

    It also keeps the seeds of samplers when ``randomness`` gives none, keeps
    gradients that are still being accumulated (in a single process), makes up
    for the validation that follows a checkpoint, whose results it cannot hold,
    makes saving safe against being killed (see :class:`AtomicCheckpointHook`,
    whose behaviour a plain ``CheckpointHook`` gets), and lets the batch norms of several
    processes keep one set of statistics, the one that a checkpoint holds
    (:class:`SyncBatchNormHook`).

    Works with ``EpochBasedTrainLoop``, ``IterBasedTrainLoop``,
    :class:`~mmkcr.engine.loops.BilevelTrainLoop` and
    :class:`~mmkcr.engine.loops.IterBilevelTrainLoop`, any sampler and batch
    sampler, any number of workers, persistent or not. Example::

        custom_hooks = [dict(type='mmkcr.ExactResumeHook')]

    Args:
        sync_batch_norm (bool): Whether batch norms see the batches of all processes. Without
            it, runs of several processes with batch norms do not go on exactly. Defaults to True.

    .. warning::
        An epoch-based run resumes at the end of an epoch: keep
        ``CheckpointHook(by_epoch=True)``. An iteration-based one must not skip
        advancing its data (``fast_forward_on_resume=False``, the default).
    """

    priority = 'VERY_HIGH'

    def __init__(self, sync_batch_norm: bool = True) -> None:
        self.sync_batch_norm = sync_batch_norm
        self._resumed: Dict = {}
        self._seed = 0
        self._validated = False

    def before_run(self, runner: Runner) -> None:
        """Give a plain ``CheckpointHook`` atomic saving; add the hooks that this one needs."""
        for hook in runner.hooks:
            if type(hook) is CheckpointHook:
                hook.__class__ = AtomicCheckpointHook
        if not any(isinstance(hook, MissedValidationHook) for hook in runner.hooks):
            runner.register_hook(MissedValidationHook())
        if self.sync_batch_norm and not any(isinstance(hook, SyncBatchNormHook)
                                            for hook in runner.hooks):
            runner.register_hook(SyncBatchNormHook())

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add samplers' seeds, waiting gradients, and whether validation is to come."""
        state = dict(sampler_seeds={name: getattr(source_sampler(loader), 'seed', None)
                                    for name, loader in _train_loaders(runner).items()},
                     validated=self._validated)
        if get_world_size() == 1:
            state['gradients'] = {name: param.grad.cpu()
                                  for name, param in unwrap(runner.model).named_parameters()
                                  if param.grad is not None}
        checkpoint[_KEY] = state

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep what was added, if the run is resumed."""
        if runner._resume:
            self._resumed = checkpoint.get(_KEY, {})

    def before_train(self, runner: Runner) -> None:
        """Number the samples of every training loader of the loop."""
        seeds = [runner.seed]
        broadcast_object_list(seeds)  # one for all ranks, also under `diff_rank_seed`
        self._seed = seeds[0]
        resumed_seeds = self._resumed.get('sampler_seeds', {})
        for name, loader in _train_loaders(runner).items():
            make_reproducible(loader, self._seed, name)
            if resumed_seeds.get(name) is not None:
                source_sampler(loader).seed = resumed_seeds[name]
        gradients = self._resumed.get('gradients', {})
        for name, param in unwrap(runner.model).named_parameters():
            if name in gradients:
                param.grad = gradients[name].to(param)
        self._resumed = {}
        self._endless(runner.train_loop)
        self._warn_within_epoch(runner)

    def before_train_epoch(self, runner: Runner) -> None:
        """Set the random states and the samplers' epoch."""
        seed_everything(derive_seed(self._seed, 'epoch', runner.epoch, get_rank()))
        for loader in _train_loaders(runner).values():
            source_sampler(loader).set_epoch(runner.epoch)

    def before_train_iter(self,
                          runner: Runner,
                          batch_idx: int,
                          data_batch: Optional[dict] = None) -> None:
        """Set the random states of the main process."""
        self._validated = False
        seed_everything(derive_seed(self._seed, 'iter', runner.iter, get_rank()))

    def after_val_epoch(self, runner: Runner, metrics: Optional[Dict[str, float]] = None) -> None:
        """Note that a checkpoint of the best model holds this validation."""
        self._validated = True

    @staticmethod
    def _endless(loop: BaseLoop) -> None:
        """Let an iteration-based run go to its position without loading what lies before."""
        if isinstance(loop, IterBasedTrainLoop) and not isinstance(loop.dataloader_iterator,
                                                                   EndlessBatches):
            loop.dataloader_iterator = EndlessBatches(loop.dataloader)

    @staticmethod
    def _warn_within_epoch(runner: Runner) -> None:
        loop = runner.train_loop
        expected = loop.epoch * len(loop.dataloader)
        if isinstance(loop, EpochBasedTrainLoop) and loop.iter != expected:
            print_log(
                f'The run does not go on exactly: expected iteration {expected} at the start of '
                f'epoch {loop.epoch + 1}, found {loop.iter} in the checkpoint, which was written '
                'within an epoch or with another batch size.', 'current', level=30)


class MissedValidationHook(Hook):
    """Runs the validation that a resumed run's checkpoint was written before.

    MMEngine saves first and validates then, so a checkpoint never holds the
    results of its own validation, and the best score may be among them.
    :class:`ExactResumeHook` registers it.
    """

    priority = 'LOWEST'  # after all other hooks are ready

    def __init__(self) -> None:
        self._missed = False

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """See whether the checkpoint is older than its validation."""
        self._missed = runner._resume and not checkpoint.get(_KEY, {}).get('validated', True)

    def before_train(self, runner: Runner) -> None:
        """Validate if the unbroken run did at this point."""
        if self._missed and runner.val_loop is not None and self._is_due(runner.train_loop):
            runner.val_loop.run()
        self._missed = False

    @staticmethod
    def _is_due(loop: BaseLoop) -> bool:
        if isinstance(loop, EpochBasedTrainLoop):
            done, total = loop.epoch, loop.max_epochs
        elif isinstance(loop, IterBasedTrainLoop):
            done, total = loop.iter, loop.max_iters
        else:
            return False
        loop._decide_current_val_interval()
        return done >= loop.val_begin and (done % loop.val_interval == 0 or done == total)


def _train_loaders(runner: Runner) -> Dict[str, DataLoader]:
    return {name: value for name, value in vars(runner.train_loop).items()
            if isinstance(value, DataLoader)}
