"""Grids over entries of a config: ``model.price.weight=0.1:0.5:0.05``."""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from mmengine.config import Config


class Preset(NamedTuple):
    """A study of KCR-Transformer v2 (sections 4.1 and D.5) or of DCS-Transformer (B).

    Args:
        grid (str): As in :func:`parse_grid`.
        fraction (float): Share of the training set.
        of_epochs (bool): Values are shares of ``train_cfg.max_epochs``.
    """

    grid: str
    fraction: float
    of_epochs: bool = False


PRESETS = {
    'lambda': Preset('model.price.weight=0.1:0.5:0.05', 0.1),
    'eta': Preset('model.regularizers.kcr.weight=0.1:0.5:0.05', 0.1),
    'eta-ib': Preset('model.regularizers.ib.weight=0.1,0.5,1,5,10,50,100', 0.1),
    'warmup': Preset('custom_hooks[WarmupSwitchHook].begin=0.1:0.6:0.1', 0.1, True),
    'rank': Preset('model.regularizers.kcr.rank_ratio=0.1:0.5:0.05', 0.2),
}


def parse_grid(text: str) -> tuple[str, list[Any]]:
    """Read one grid.

    Args:
        text (str): ``path=first:last:step`` (both ends included) or
            ``path=a,b,c``. A path is that of ``--cfg-options``; an entry of a
            list may be given by its type, as in
            ``custom_hooks[WarmupSwitchHook].begin``.

    Returns:
        tuple[str, list]: Path and values.

    Raises:
        ValueError: Anything else.
    """
    path, equals, values = text.partition('=')
    parts = values.split(':')
    try:
        if not path.strip() or not equals or not values.strip():
            raise ValueError
        if len(parts) == 3:
            return path.strip(), _range(*map(Decimal, parts))
        if len(parts) > 1:
            raise ValueError
    except (ValueError, InvalidOperation) as error:
        raise ValueError('expected a grid `path=first:last:step` or `path=a,b,c`, found '
                         f'{text!r}') from error
    return path.strip(), [_literal(value) for value in values.split(',')]


def _range(first: Decimal, last: Decimal, step: Decimal) -> list[Any]:
    if step <= 0 or last < first:
        raise ValueError
    count = int((last - first) / step) + 1
    numbers = [first + number * step for number in range(count)]
    whole = all(number == int(number) for number in (first, last, step))
    return [int(number) if whole else float(number) for number in numbers]


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text.strip()


def preset_grid(name: str, config: Config) -> tuple[str, list[Any]]:
    """The grid of a preset for a config.

    Args:
        name (str): Among :data:`PRESETS`.
        config (Config): Gives the number of epochs.

    Raises:
        ValueError: Unknown name, or a study of epochs without
            ``train_cfg.max_epochs``.
    """
    if name not in PRESETS:
        raise ValueError(f'expected a preset among {sorted(PRESETS)}, found `{name}`')
    path, values = parse_grid(PRESETS[name].grid)
    if PRESETS[name].of_epochs:
        epochs = (config.get('train_cfg') or {}).get('max_epochs')
        if not epochs:
            raise ValueError(f'expected `train_cfg.max_epochs` for the preset `{name}`, found none')
        values = sorted({round(value * epochs) for value in values})
    return path, values


def resolve_path(config: Config, path: str) -> str:
    """Turn ``custom_hooks[WarmupSwitchHook].begin`` into ``custom_hooks.1.begin``.

    Raises:
        ValueError: The config has no such entry; the message names the part
            that is missing.
    """
    steps: list[str] = []
    node: Any = getattr(config, '_cfg_dict', config)
    for name, kind in re.findall(r'([^.\[\]]+)(?:\[([\w.]+)\])?', path):
        node = _child(node, name, path)
        steps.append(name)
        if kind:
            types = [str(dict(item).get('type')).split('.')[-1] for item in node]
            if kind not in types:
                raise ValueError(f'expected one `{kind}` in `{name}` of the config, found {types}')
            steps.append(str(types.index(kind)))
            node = node[types.index(kind)]
    return '.'.join(steps)


def _child(node: Any, name: str, path: str) -> Any:
    if isinstance(node, Mapping) and name in node:
        return node[name]
    if isinstance(node, (list, tuple)) and name.isdigit() and int(name) < len(node):
        return node[int(name)]
    found = sorted(node) if isinstance(node, Mapping) else type(node).__name__
    raise ValueError(f'expected a config with an entry `{path}`, found no `{name}` among {found}')


def combinations(grids: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """All combinations of the grids' values."""
    for values in itertools.product(*grids.values()):
        yield dict(zip(grids, values))


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """A copy of a config with other values at some paths."""
    config = Config(config._cfg_dict.to_dict())
    for path, value in values.items():
        config.merge_from_dict({resolve_path(config, path): value})
    return config
