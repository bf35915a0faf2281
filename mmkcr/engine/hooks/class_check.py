"""Refuses heads, data and masks that disagree on the classes."""

from collections.abc import Iterator
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmkcr.datasets.data_check import watch_labels
from mmkcr.models.tasks import find_task, is_self_supervised
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
    """Refuse heads whose number of classes differs from the data set's.

    In panoptic segmentation a detector's heads on regions know the things only. A data set that
    names no classes passes.

    Raises:
        ValueError: A head has another number of classes, or COCO annotations lack some of the
            classes; the message names the data set's ``part``, such as ``'training'``.
    """
    classes = (getattr(dataset, 'metainfo', None) or {}).get('classes') or ()
    if isinstance(classes, str) or not classes:
        return
    what = f'the {part} set (`{type(dataset).__name__}`)'
    categories = getattr(dataset, 'cat_ids', None)
    if isinstance(categories, list) and len(categories) != len(classes):
        raise ValueError(f'expected categories for the {len(classes)} classes of {what} in its '
                         f'annotations, found {len(categories)} of them')
    things = dataset.metainfo.get('thing_classes') or classes  # panoptic: without the stuff
    task = find_task(model)
    for name, count in _heads(task):
        expected, kind = (things, 'things') if 'roi_head' in name.split('.') and \
            things is not classes else (classes, 'classes')
        if count != len(expected):
            raise ValueError(f'expected `num_classes` {len(expected)} of `{name}`, the number of '
                             f'{kind} of {what}, found {count}')
    # the stuff maps beside instances have as many classes as the head that learns them
    stuff = [module.num_classes for module in task.modules()
             if type(module).__name__ == 'FusedSemanticHead']
    watch_labels(dataset, stuff[0] if stuff else len(classes))


def _heads(task: nn.Module) -> Iterator[tuple[str, int]]:
    """Name and ``num_classes`` of every head with the classes of the data set."""
    if _is_a(task, 'BaseMOTModel'):  # trackers find some classes, or tell persons apart
        return
    for name, module in task.named_modules():
        count = getattr(module, 'num_classes', None)
        other = _is_a(module, _OTHER_CLASSES)
        if 'head' in name and 'rpn_head' not in name and isinstance(count, int) and count > 0 and \
                not other:
            yield name, count


def _is_a(module: nn.Module, names: str | tuple[str, ...]) -> bool:
    # by name, as importing the classes of mmdet needs its compiled operators
    return any(cls.__name__.endswith(names) for cls in type(module).__mro__)
