"""Hooks that stop a run: heads and data with other classes, numbers that are not finite."""

import math
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import Runner
from torch import nn

from mmkcr.core import NonFiniteError
from mmkcr.core.checks import all_finite
from mmkcr.datasets.data_check import watch_labels
from mmkcr.models.tasks import find_task, is_self_supervised, unwrap
from mmkcr.registry import HOOKS

#: Heads of the hosts whose classes are not those of the data set: objects against background (also
#: as the head of a detector of its own), stuff maps beside instances (HTC, SCNet, Panoptic FPN),
#: the edges of STDC, and words of a text (Grounding DINO, GLIP). By the end of the class's name or
#: of a parent's.
_OTHER_CLASSES = ('RPNHead', 'FusedSemanticHead', 'BaseSemanticHead', 'STDCHead',
                  'GroundingDINOHead', 'ATSSVLFusionHead')


@HOOKS.register_module()
class ClassCheckHook(Hook):
    """Compares ``num_classes`` of every head with the classes of the data sets.

    The hosts do not: a head for fewer classes fails in the middle of a loss or a metric, one for
    more trains. Masks of semantic segmentation are checked when they are loaded
    (:class:`~mmkcr.datasets.data_check.CheckSegLabels`). Self-supervised training reads no labels,
    and the log says so. ``tools/train.py`` and ``tools/test.py`` use this hook.
    """

    priority = 'VERY_HIGH'

    def before_train(self, runner: Runner) -> None:
        """Check the training set, and the validation set if there is one."""
        dataset, task = runner.train_dataloader.dataset, find_task(runner.model)
        check_classes(runner.model, dataset, 'training')
        if is_self_supervised(task) and (getattr(dataset, 'metainfo', None) or {}).get('classes'):
            runner.logger.info(f'`{type(task).__name__}` learns without labels: those of the '
                               f'training set (`{type(dataset).__name__}`) are not read')
        if runner.val_loop is not None:
            check_classes(runner.model, runner.val_dataloader.dataset, 'validation')

    def before_test(self, runner: Runner) -> None:
        """Check the test set."""
        check_classes(runner.model, runner.test_dataloader.dataset, 'test')


def check_classes(model: nn.Module, dataset: Any, part: str) -> None:
    """Refuse heads and annotations with other numbers of classes than the data set.

    In panoptic segmentation a detector's heads on regions know the things only. A data set that
    names no classes passes, and so does any data set of a tracker.

    Args:
        model (nn.Module): Task model, also in a wrapper.
        dataset (Dataset): With ``metainfo``.
        part (str): Name of the data set in messages, such as ``'training'``.

    Raises:
        ValueError: The message names head or data set, and both numbers.
    """
    task = find_task(model)
    classes = (getattr(dataset, 'metainfo', None) or {}).get('classes') or ()
    # trackers find some classes, or tell persons apart
    if isinstance(classes, str) or not classes or _is_a(task, 'BaseMOTModel'):
        return
    what = f'the {part} set (`{type(dataset).__name__}`)'
    categories = getattr(dataset, 'cat_ids', None)
    if isinstance(categories, list) and len(categories) != len(classes):
        raise ValueError(f'expected categories for the {len(classes)} classes of {what} in its '
                         f'annotations, found {len(categories)} of them')
    things = dataset.metainfo.get('thing_classes') or classes  # panoptic: without the stuff
    for name, module in task.named_modules():
        count = getattr(module, 'num_classes', None)
        if 'head' not in name or 'rpn_head' in name or _is_a(module, _OTHER_CLASSES) or \
                not isinstance(count, int) or count < 1:
            continue
        expected, kind = (things, 'things') if 'roi_head' in name.split('.') and \
            things is not classes else (classes, 'classes')
        if count != len(expected):
            raise ValueError(f'expected `num_classes` {len(expected)} of `{name}`, the number of '
                             f'{kind} of {what}, found {count}')
    # the stuff maps beside instances have as many classes as the head that learns them
    stuff = [module.num_classes for module in task.modules()
             if type(module).__name__ == 'FusedSemanticHead']
    watch_labels(dataset, stuff[0] if stuff else len(classes))


def _is_a(module: nn.Module, names: str | tuple[str, ...]) -> bool:
    # by name, as importing the classes of mmdet needs its compiled operators
    return any(cls.__name__.endswith(names) for cls in type(module).__mro__)


@HOOKS.register_module()
class FiniteHook(Hook):
    """Stops at the first loss that is not finite, and never saves a state that is not.

    The message names iteration and term, and the last good checkpoint remains the last one. In
    mixed precision (``AmpOptimWrapper``) the scaler skips steps while it looks for its scale, and
    the weights stay as they are. It may skip ``patience`` of them in a row, where gradients are
    accumulated as well. A search, which stops by itself before the step, leaves such losses to this
    hook then. ``ExactResumeHook`` and ``tools/train.py`` add this hook.

    Args:
        patience (int): Maximum number of iterations in a row without a step. Defaults to 50.
    """

    priority = 'LOW'  # after averages are swapped in, before anything is saved

    def __init__(self, patience: int = 50) -> None:
        if patience < 0:
            raise ValueError(f'expected a `patience` of at least 0, found {patience}')
        self.patience = patience
        self._skipped = 0
        self._scaled: list[OptimWrapper] = []
        self._stepped: set[torch.optim.Optimizer] = set()
        self._scales: list[float] = []
        self._handles: list[Any] = []
        self._ignored: set[str] = set()

    def before_train(self, runner: Runner) -> None:
        """Record buffers that are not finite by design, and whether steps may be skipped."""
        wrapper = runner.optim_wrapper
        parts = wrapper.values() if isinstance(wrapper, OptimWrapperDict) else [wrapper]
        self._scaled = [part for part in parts if getattr(part, 'loss_scaler', None) is not None
                        and part.loss_scaler.is_enabled()]
        self._skipped = 0
        self._scales = [part.loss_scaler.get_scale() for part in self._scaled]
        self._handles = [part.optimizer.register_step_post_hook(
            lambda optimizer, *_: self._stepped.add(optimizer)) for part in self._scaled]
        model = unwrap(runner.model)
        self._ignored = {name for name, value in model.named_buffers() if not _finite(value)}
        if hasattr(model, 'steps_may_be_skipped'):
            model.steps_may_be_skipped = bool(self._scaled)

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any | None = None,
                         outputs: dict[str, Any] | None = None) -> None:
        """Check all terms of the loss, and how many steps the scaler has skipped.

        Raises:
            NonFiniteError: A term is not finite, or too many steps in a row were skipped.
        """
        losses = {name: value for name, value in (outputs or {}).items()
                  if 'loss' in name and not _finite(value)}
        # an iteration that only accumulates gradients proves nothing
        due = {part.optimizer for part in self._scaled if part.should_update()}
        scales = [part.loss_scaler.get_scale() for part in self._scaled]
        # a scaler that skips a step lowers its scale, unless that is a constant, and does not call
        # the optimizer, unless that is a fused one
        if losses or due - self._stepped or any(
                now < then for now, then in zip(scales, self._scales)):
            self._skipped += 1
        elif len(due) == len(scales):
            self._skipped = 0
        self._scales, self._stepped = scales, set()
        step = runner.iter + 1
        # with a scaler, a loss that overflows is first answered by a smaller scale
        if losses and (not scales or self._skipped > self.patience):
            # sums stand first in the log, so the last entry is a term
            name = list(losses)[-1]
            raise NonFiniteError(f'expected finite losses at iteration {step}, found '
                                 f'{float(losses[name])} in `{name}`')
        if self._skipped > self.patience:
            raise NonFiniteError(f'expected finite gradients at iteration {step}, found none in '
                                 f'{self._skipped} iterations: the loss scale is {min(scales):g}')

    def after_train(self, runner: Runner) -> None:
        """Stop looking at the optimizers."""
        while self._handles:
            self._handles.pop().remove()

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict[str, Any]) -> None:
        """Check everything that is to be saved.

        Raises:
            NonFiniteError: A weight or an average is not finite; nothing is written.
        """
        for part in ('state_dict', 'ema_state_dict'):
            for name, value in (checkpoint.get(part) or {}).items():
                # averaged copies have a prefix
                if not _finite(value) and not any(map(name.endswith, self._ignored)):
                    raise NonFiniteError(
                        f'expected finite weights to save at iteration {runner.iter}, found others '
                        f'in `{name}` of `{part}`')


def _finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not torch.is_tensor(value) or not value.is_floating_point() or all_finite(value)
