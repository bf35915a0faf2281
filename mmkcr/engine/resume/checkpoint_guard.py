"""Refuses checkpoints of another model, and to resume another run."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmkcr.models.loading import load_run, load_start, load_task, weights_of
from mmkcr.registry import HOOKS

#: Parts of a config that decide what a run computes.
_COMPARED = ('model', 'data_preprocessor', 'train_cfg', 'optim_wrapper', 'param_scheduler',
             'train_dataloader', 'custom_hooks', 'randomness', 'auto_scale_lr')
#: Keys below these that do not: paths, speed of loading, and what is only observed.
_FREE = ('init_cfg', 'pretrained', 'structure', 'with_cp', 'num_workers', 'persistent_workers',
         'pin_memory', 'prefetch_factor', 'data_root', 'data_prefix', 'ann_file', 'collate_fn',
         'val_begin', 'val_interval', 'dynamic_intervals')
#: Values that are read from the checkpoint, whatever the config says. Settings around an optimizer,
#: such as clipping, and schedulers that only one config has are not.
_RESTORED = re.compile(r'(optim_wrapper\.(.*\.)?optimizer\.|param_scheduler\.|randomness\.seed$)'
                       r'(?!.*\btype$)')
_CONFIG_ENTRIES = 'entries'
_MISSING = object()


@HOOKS.register_module()
class CheckpointGuardHook(Hook):
    """Stops a run whose checkpoint does not fit, which MMEngine only warns of.

    To resume, a checkpoint must hold every entry of the model, in its shape
    (:func:`~mmkcr.models.loading.load_run`); to test, every entry of the task model
    (:func:`~mmkcr.models.loading.load_task`); to start a training (``load_from``), those of the
    backbone (:func:`~mmkcr.models.loading.load_start`). A run is not resumed as another one, see
    :func:`config_changes`. ``tools/train.py`` and ``tools/test.py`` use this hook.

    Args:
        complete (bool, optional): Whether the whole task model must be there. Defaults to None:
            decided by what the run does with the checkpoint.
    """

    priority = 'VERY_LOW'  # after others changed the checkpoint, as `EMAHook` does

    def __init__(self, complete: bool | None = None) -> None:
        self.complete = complete

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Add the config as data, as its text is Python, which nobody runs on resuming."""
        checkpoint['meta'][_CONFIG_ENTRIES] = config_entries(runner.cfg.to_dict())

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Load the checkpoint once, strictly, before the host loads it.

        Raises:
            ValueError: The checkpoint does not fit; the message names the first entry that does
                not. Or the run to resume was another one.
        """
        path = str(runner._load_from or runner.work_dir)
        if runner._resume:
            if 'optimizer' not in checkpoint:  # MMEngine would begin it anew without a word
                raise ValueError(f'expected the state of the optimizer in `{path}` to resume from, '
                                 'found none, as in a file of the best weights or of a published '
                                 'network: resume from another checkpoint of the run, or begin '
                                 'from these weights (`load_from` without `--resume`)')
            _compare(runner, (checkpoint.get('meta') or {}).get(_CONFIG_ENTRIES), path)
        load = load_task if self.complete else load_run if runner._resume else load_start
        load(runner.model, weights_of(checkpoint, runner.model, path), path)


def _compare(runner: Runner, before: Any, path: str) -> None:
    """Name what differs from the entries in a checkpoint, and refuse another run."""
    if not isinstance(before, Mapping):  # of another program, or of an earlier version
        runner.logger.warning(f'The config of the run in `{path}` cannot be compared, as the '
                              'checkpoint does not hold its entries.')
        return
    refused, named = config_changes(before, config_entries(runner.cfg.to_dict()))
    for line in named:
        runner.logger.warning(f'Resumed with another config: {line}.')
    if refused:
        raise ValueError(
            f'expected the config of the run in `{path}`, found that {refused[0]}, and '
            f'{len(refused) - 1} more changes that make it another run: begin one from its '
            'weights (`load_from` without `--resume`)')


def config_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that decide the results of a run: plain values by their dotted names."""
    return dict(_entries('', {key: value for key, value in config.items() if key in _COMPARED}))


def config_changes(before: Mapping[str, Any],
                   now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Compare the :func:`config_entries` of a run with those of the run that resumes it.

    The first changes make another run: of the model, the price, the split of the data, the
    accumulation of gradients. The second are all other changes. Each is one line.
    """
    refused, named = [], []
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key, _MISSING), now.get(key, _MISSING)
        if old == new:
            continue
        was, now_is = ('not there' if value is _MISSING else f'{value!r:.60}'
                       for value in (old, new))
        line = f'`{key}` was {was} and is {now_is}'
        first, _, rest = key.partition('.')
        # accumulation decides which samples share a step
        essential = rest not in ('max_epochs', 'max_iters') if first == 'train_cfg' else \
            first in ('model', 'data_preprocessor') or key.endswith('accumulative_counts')
        if essential:
            refused.append(line)
        elif _RESTORED.match(key) and _MISSING not in (old, new):
            named.append(f"{line}: the checkpoint's is used")
        else:
            named.append(f'{line}: the run does not go on as it would have')
    return refused, named


def _entries(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of a config by their dotted names, without entries that may differ."""
    parts: dict[Any, Any] = {}
    if isinstance(value, Mapping) and value:
        parts = {name: entry for name, entry in value.items() if name not in _FREE}
    elif isinstance(value, (list, tuple)) and any(
            isinstance(entry, (Mapping, list, tuple)) for entry in value):
        parts = dict(enumerate(value))
    elif isinstance(value, (list, tuple)):  # they mean the same in a config
        yield key, [_plain(entry) for entry in value]
    else:
        yield key, _plain(value)
    for name, entry in parts.items():
        yield from _entries(f'{key}.{name}' if key else str(name), entry)


def _plain(value: Any) -> Any:
    """A value as data; an object counts by its class, as its text may hold an address."""
    return value if isinstance(value, (str, int, float, type(None))) else type(value).__name__
