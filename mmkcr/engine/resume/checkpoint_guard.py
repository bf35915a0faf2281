"""Refuses checkpoints of another model, and to resume another run."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmkcr.models.loading import load_run, load_start, load_task, weights_of
from mmkcr.registry import HOOKS
from mmkcr.safe_load import read_config_text

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
            self._compare_configs(runner, checkpoint, path)
        load = load_task if self.complete else load_run if runner._resume else load_start
        load(runner.model, weights_of(checkpoint, path), path)

    @staticmethod
    def _compare_configs(runner: Runner, checkpoint: dict, path: str) -> None:
        text = (checkpoint.get('meta') or {}).get('cfg')
        try:
            if not isinstance(text, str):
                raise ValueError('it holds none')
            refused, named = config_changes(text, runner.cfg, path)
        except ValueError as error:  # objects in a config, or a checkpoint of another program
            runner.logger.warning(f'The config of `{path}` cannot be compared: {error}')
            return
        for line in named:
            runner.logger.warning(f'Resumed with another config: {line}.')
        if refused:
            raise ValueError(
                f'expected the config of the run in `{path}`, found that {refused[0]}, and '
                f'{len(refused) - 1} more changes that make it another run: begin one from its '
                'weights (`load_from` without `--resume`)')


def config_changes(text: str, config: Config, path: str) -> tuple[list[str], list[str]]:
    """Compare the config in a checkpoint with that of the run that resumes from it.

    A different model, price, split of the data or accumulation of gradients makes another run.

    Args:
        text (str): ``meta['cfg']`` of the checkpoint at ``path``.
        config (Config): Config of the run.
        path (str): For messages.

    Returns:
        tuple[list[str], list[str]]: Changes that make another run, and all others, one line each.

    Raises:
        ValueError: The text is no config of plain values.
    """
    # both from their text, so that both have only what a text can hold
    before, now = (dict(_entries('', {key: value for key, value in part.items()
                                      if key in _COMPARED}))
                   for part in (read_config_text(text, path),
                                read_config_text(config.pretty_text, path)))
    refused, named = [], []
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key, _MISSING), now.get(key, _MISSING)
        if old is not _MISSING and new is not _MISSING and old == new:
            continue
        was, now_is = ('not there' if value is _MISSING else f'{value!r:.60}'
                       for value in (old, new))
        line = f'`{key}` was {was} and is {now_is}'
        if _is_essential(key):
            refused.append(line)
        elif _RESTORED.match(key) and _MISSING not in (old, new):
            named.append(f"{line}: the checkpoint's is used")
        else:
            named.append(f'{line}: the run does not go on as it would have')
    return refused, named


def _is_essential(key: str) -> bool:
    first, _, rest = key.partition('.')
    if first == 'train_cfg':
        return rest not in ('max_epochs', 'max_iters')
    # accumulation decides which samples share a step
    return first in ('model', 'data_preprocessor') or key.endswith('accumulative_counts')


def _entries(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of a config by their dotted names, without entries that may differ."""
    items: dict[str, Any] = {}
    if isinstance(value, Mapping) and value:
        items = {str(name): entry for name, entry in value.items() if name not in _FREE}
    elif isinstance(value, (list, tuple)) and any(
            isinstance(entry, (Mapping, list, tuple)) for entry in value):
        items = {str(index): entry for index, entry in enumerate(value)}
    else:
        # a tuple and a list mean the same in a config
        yield key, list(value) if isinstance(value, tuple) else value
    for name, entry in items.items():
        yield from _entries(f'{key}.{name}' if key else name, entry)
