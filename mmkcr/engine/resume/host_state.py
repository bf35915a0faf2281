"""State of the hosts' modules and hooks that is in no state_dict."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.runner import Runner

from mmkcr.models.tasks import unwrap

#: Attributes by library and class, also of subclasses; dots lead to parts of an object.
HOST_STATE: dict[str, tuple[str, ...]] = {
    'mmdet.BatchSyncRandomResize': ('_input_size', ),
    'mmdet.DropBlock': ('iter_cnt', ),
    'mmdet.DynamicRoIHead': (
        'iou_history', 'beta_history', 'bbox_head.loss_bbox.beta', 'bbox_assigner.pos_iou_thr',
        'bbox_assigner.neg_iou_thr', 'bbox_assigner.min_pos_iou'),
    'mmengine.EarlyStoppingHook': ('wait_count', 'best_score'),
}


def host_state(runner: Runner) -> dict[str, Any]:
    """Plain values of :data:`HOST_STATE` by the module's path, or the hook's class and number."""
    return {name: _plain(getattr(owner, attribute)) for name, owner, attribute in _entries(runner)}


def set_host_state(runner: Runner, state: dict[str, Any]) -> None:
    """Set what :func:`host_state` found; what the run does not have any more is left out."""
    for name, owner, attribute in _entries(runner):
        if name in state:
            setattr(owner, attribute, _plain(state[name]))


def _entries(runner: Runner) -> Iterator[tuple[str, Any, str]]:
    """A name of its own, the object and its attribute."""
    owners = [(f'module {path}', module) for path, module
              in unwrap(runner.model).named_modules()]
    numbers: Counter[str] = Counter()  # among the hooks of a class: others may come and go
    for hook in runner.hooks:
        kind = type(hook).__name__
        owners.append((f'hook {kind} {numbers[kind]}', hook))
        numbers[kind] += 1
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
    """A copy of numbers, lists and tuples, without NumPy's and PyTorch's types."""
    if isinstance(value, (np.generic, torch.Tensor)):
        return value.item()
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value
