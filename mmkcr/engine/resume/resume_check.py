"""Differences between a resumed run's config and the one in its checkpoint."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config

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
    before, now = (dict(_entries('', {key: value for key, value in whole.items()
                                      if key in _COMPARED}))
                   for whole in (read_config_text(text, path),
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
