"""Runs that were stopped continue as if they had not been."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object, broadcast_object_list, get_rank
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import print_log
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from mmkcr.engine.checks import FiniteHook
from mmkcr.engine.sync_batch_norm import SyncBatchNormHook
from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS
from . import batches
from .checkpoints import AtomicCheckpointHook, PreemptionHook

_STATE = 'exact_resume'
#: Attributes by library and class, also of subclasses; dots lead to parts of an object.
HOST_STATE: dict[str, tuple[str, ...]] = {
    'mmdet.BatchSyncRandomResize': ('_input_size', ),
    'mmdet.DropBlock': ('iter_cnt', ),
    'mmdet.DynamicRoIHead': (
        'iou_history', 'beta_history', 'bbox_head.loss_bbox.beta', 'bbox_assigner.pos_iou_thr',
        'bbox_assigner.neg_iou_thr', 'bbox_assigner.min_pos_iou'),
    'mmengine.EarlyStoppingHook': ('wait_count', 'best_score'),
}


@HOOKS.register_module()
class ExactResumeHook(Hook):
    """Makes a resumed run give the same numbers as an unbroken one.

    MMEngine restores no random state. Here every random draw is a function of the seed and of the
    position in the run:

    - a sample's augmentation depends on (seed, epoch, position in the epoch), on no worker and no
      number of ranks (:func:`~mmkcr.engine.resume.batches.make_reproducible`);
    - an iteration-based run reaches its sample by drawing indices
      (:class:`~mmkcr.engine.resume.batches.EndlessBatches`);
    - mixup, dropout and stochastic depth in the main process depend on (seed, iteration, rank): on
      purpose, so with them two processes are not one with twice the batch.

    State that is no function of them is stored: the seeds of samplers when ``randomness`` gives
    none,
    gradients that are still being accumulated, and what hosts remember outside of any state_dict
    (:data:`HOST_STATE`). It resumes within an epoch, and repeats the validation that follows a
    checkpoint, whose results the checkpoint cannot hold. A plain ``CheckpointHook`` becomes an
    :class:`AtomicCheckpointHook`. It registers :class:`PreemptionHook`, :class:`FiniteHook` and
    :class:`SyncBatchNormHook`.

    Works with MMEngine's loops of epochs and of iterations, those of a search in two levels, any
    sampler and batch sampler, any number of workers, persistent or not.

    Args:
        sync_batch_norm (bool): Whether batch norms see the batches of all processes. Without
            it, runs of several processes with batch norms do not resume exactly. Defaults to True.

    .. warning::
        A run that is resumed within an epoch needs the number of batches per epoch that it had.
        An iteration-based run must not skip advancing its data (``fast_forward_on_resume=False``,
        the default).
    """

    priority = 'VERY_HIGH'

    def __init__(self, sync_batch_norm: bool = True) -> None:
        self.sync_batch_norm = sync_batch_norm
        self._resumed: dict[str, Any] = {}  # what a checkpoint to resume from has stored
        self._seed = 0
        self._validated = False
        self._passed = 0  # batches that a resumed run has already used of its epoch
        self._restore_numbers: Callable[[], None] | None = None
        self._processes: list[dict[str, Any]] | None = None

    def before_run(self, runner: Runner) -> None:
        """Make a plain ``CheckpointHook`` atomic, and add the hooks that this one needs."""
        for place, hook in enumerate(runner.hooks):
            if type(hook) is CheckpointHook:
                runner.hooks[place] = AtomicCheckpointHook()
                vars(runner.hooks[place]).update(vars(hook))
        wanted = [MissedValidationHook(self._resumed), PreemptionHook(), FiniteHook()]
        wanted += [SyncBatchNormHook()] if self.sync_batch_norm else []
        for hook in wanted:
            if not any(isinstance(present, type(hook)) for present in runner.hooks):
                runner.register_hook(hook)

    def before_checkpoint(self, runner: Runner) -> None:
        """Gather what all processes have of their own, as only one of them saves."""
        self._processes = all_gather_object(own_state(runner))

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add samplers' seeds, waiting gradients, hosts' state, and whether to validate."""
        # a hook that does not announce it on all processes saves what this one has
        processes, self._processes = self._processes or [own_state(runner)], None
        loop, meta = runner.train_loop, checkpoint['meta']
        # in the middle of an epoch: more iterations than the epochs that are complete hold
        within = isinstance(loop, EpochBasedTrainLoop) and meta['iter'] > meta['epoch'] * len(
            loop.dataloader)
        checkpoint[_STATE] = dict(
            sampler_seeds={name: getattr(batches.source_sampler(loader), 'seed', None)
                           for name, loader in batches.loaders_of(runner.train_loop).items()},
            # what was to be validated before an epoch began has been
            validated=self._validated or within,
            batches=len(loop.dataloader) if within else None,
            processes=processes)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Keep what a run to resume has stored, and find out how much of its epoch is past."""
        if not runner._resume:
            return
        self._resumed.update(checkpoint.get(_STATE, {}))
        loop, meta = runner.train_loop, checkpoint.get('meta') or {}
        # weights alone are the guard's to refuse
        if not isinstance(loop, EpochBasedTrainLoop) or not {'epoch', 'iter'} <= meta.keys():
            return
        begin = meta['epoch'] * len(loop.dataloader)
        if self._resumed.pop('batches', None) == len(loop.dataloader):
            self._passed = meta['iter'] - begin
        elif meta['iter'] != begin:
            print_log(f'The run does not go on exactly: expected iteration {begin} at the start of '
                      f'epoch {meta["epoch"] + 1}, found {meta["iter"]} in the checkpoint, which '
                      'was written within an epoch or with another batch size.', 'current',
                      level=30)
            # another number of batches means another order: the epoch begins anew, and what is past
            # counts as epochs of today's length, for all that looks at both counters
            meta['iter'] = begin

    def before_train(self, runner: Runner) -> None:
        """Number the samples of every training loader of the loop.

        Raises:
            ValueError: A loader without a batch.
        """
        seeds = [runner.seed]
        broadcast_object_list(seeds)  # one for all ranks, also under `diff_rank_seed`
        self._seed = seeds[0]
        resumed_seeds = self._resumed.pop('sampler_seeds', {})
        for name, loader in batches.loaders_of(runner.train_loop).items():
            sampler = loader.batch_sampler
            # the host would train nothing, or end in a bare StopIteration
            if hasattr(sampler, '__len__') and len(sampler) == 0:
                raise ValueError(f'expected at least one batch of {sampler.batch_size} images in '
                                 f'`{name}`, found {len(loader.dataset)} images, of which '
                                 '`drop_last` leaves none')
            batches.make_reproducible(loader, self._seed, name)
            if resumed_seeds.get(name) is not None:
                # without `randomness` the host draws a new seed for every start
                batches.source_sampler(loader).seed = resumed_seeds[name]
        if states := self._resumed.pop('processes', None):
            # of another number of processes each has what one of them had
            set_own_state(runner, states[get_rank() % len(states)])
        loop = runner.train_loop
        # an iteration-based run goes to its position without loading skipped batches
        if isinstance(loop, IterBasedTrainLoop) and not isinstance(loop.dataloader_iterator,
                                                                   batches.EndlessBatches):
            loop.dataloader_iterator = batches.EndlessBatches(loop.dataloader)

    def before_train_epoch(self, runner: Runner) -> None:
        """Set the random states and the samplers' epoch, and skip batches of a resumed epoch."""
        batches.seed_everything(batches.derive_seed(self._seed, 'epoch', runner.epoch, get_rank()))
        for loader in batches.loaders_of(runner.train_loop).values():
            batches.set_epoch(loader, runner.epoch)
            # 0 too: of two loaders the second is not asked once the first has nothing left
            batches.skip_batches(loader, self._passed)
        if self._passed:
            self._restore_numbers = number_batches_from(runner.train_loop, self._passed)
        self._passed = 0

    def before_train_iter(self, runner: Runner, batch_idx: int,
                          data_batch: dict | None = None) -> None:
        """Set the random states of the main process."""
        self._validated = False
        batches.seed_everything(batches.derive_seed(self._seed, 'iter', runner.iter, get_rank()))

    def after_train_epoch(self, runner: Runner) -> None:
        """Number the batches of the next epoch from 0, as the loop does."""
        if self._restore_numbers is not None:
            self._restore_numbers()
            self._restore_numbers = None

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float] | None = None) -> None:
        """Note that a checkpoint of the best model already has this validation behind it."""
        self._validated = True


class MissedValidationHook(Hook):
    """Runs the validation that was due when a resumed run's checkpoint was written.

    MMEngine saves first and validates then. :class:`ExactResumeHook` registers this hook.
    """

    priority = 'LOWEST'  # after all other hooks are ready

    def __init__(self, resumed: dict[str, Any]) -> None:
        self.resumed = resumed

    def before_train(self, runner: Runner) -> None:
        """Validate if the unbroken run did so at this point."""
        loop = runner.train_loop
        if self.resumed.pop('validated', True) or runner.val_loop is None:
            return
        done, total = (loop.epoch, loop.max_epochs) if isinstance(loop, EpochBasedTrainLoop) else \
            (loop.iter, loop.max_iters)
        loop._decide_current_val_interval()
        if done >= loop.val_begin and (done % loop.val_interval == 0 or done == total):
            runner.val_loop.run()


def number_batches_from(loop: EpochBasedTrainLoop, first: int) -> Callable[[], None]:
    """Make a loop number the batches of its epoch from ``first``, for its log and its hooks.

    MMEngine numbers batches from 0 in every pass over a loader.

    Returns:
        Callable: Restores the loop's own numbers, at the end of the epoch.
    """
    own, run_iter = vars(loop).get('run_iter'), loop.run_iter

    def run_numbered(idx: int, *batch: Any) -> None:
        run_iter(idx + first, *batch)

    def restore() -> None:
        del loop.run_iter
        if own is not None:
            loop.run_iter = own

    loop.run_iter = run_numbered
    return restore


def own_state(runner: Runner) -> dict[str, Any]:
    """State of a process that is in no state_dict: waiting gradients, and :data:`HOST_STATE`."""
    values = {name: getattr(owner, attribute) for name, owner, attribute in _entries(runner)}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def set_own_state(runner: Runner, state: dict[str, Any]) -> None:
    """Restore the state that :func:`own_state` collected, without what the run lacks."""
    for name, owner, attribute in _entries(runner):
        if name in state:
            value = _plain(state[name])
            setattr(owner, attribute, value.to(owner) if attribute == 'grad' else value)


def _entries(runner: Runner) -> Iterator[tuple[str, Any, str]]:
    """A name of its own, the object and its attribute."""
    model = unwrap(runner.model)
    for name, param in model.named_parameters():
        yield f'gradient {name}', param, 'grad'
    owners = [(f'module {path}', module) for path, module in model.named_modules()]
    kinds = [type(hook).__name__ for hook in runner.hooks]
    for place, (kind, hook) in enumerate(zip(kinds, runner.hooks)):
        # numbered among the hooks of a class: others may come and go
        owners.append((f'hook {kind} {kinds[:place].count(kind)}', hook))
    for name, owner in owners:
        for cls in type(owner).__mro__:
            library = cls.__module__.partition('.')[0]
            for attribute in HOST_STATE.get(f'{library}.{cls.__name__}', ()):
                *path, last = attribute.split('.')
                part = owner
                for step in path:
                    part = getattr(part, step, None)
                if hasattr(part, last):  # a head without `train_cfg` has no assigner
                    yield f'{name}: {attribute}', part, last


def _plain(value: Any) -> Any:
    """A copy of numbers, lists and tuples without NumPy's types, and of tensors on the CPU."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value
