"""Choice of heads that an operator replaces: a list of blocks, or scores (drop-in convolution,
section 3.3).

Both may stand where a structure file does, for example
``structure=dict(blocks=[8, 6, 4, 9])`` or ``structure=dict(scores='scores.json', replace=12)``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmkcr.core.structure import read_json
from .layers.head_operators import head_operator
from .sites.base import HostSite

SELECTIONS = ('lowest', 'highest', 'random')
#: A number of blocks or heads (int), or a share of all (float between 0 and 1).
Count = int | float
_KEYS = dict(blocks=('operator', ),
             scores=('replace', 'which', 'scattered', 'seed', 'operator'))


def find_head_sites(sites: Mapping[str, HostSite]) -> dict[str, HostSite]:
    """The sites whose units are heads that an operator may compute, by name, in block order."""
    return {name: site for name, site in sites.items() if site.operators()}


def set_operator(sites: Mapping[str, HostSite], operator: str) -> None:
    """Set the operator of replaced heads in new structures; an unknown name is refused."""
    head_operator(operator)
    for site in find_head_sites(sites).values():
        site.operator = operator


def select_heads(scores: Mapping[str, Tensor], count: Count, which: str = 'lowest',
                 blockwise: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Heads that stay attention, by site, int64, ascending, when others are replaced.

    Args:
        scores (Mapping[str, Tensor]): One number a head, (H,), by site, in block order.
        count (int | float): Blocks or heads to replace; a float between 0 and 1 is a share of all,
            rounded.
        which (str): One of :data:`SELECTIONS`. Defaults to ``'lowest'``.
        blockwise (bool): Whether all heads of a block are replaced together. Its score is the mean
            of its heads' scores. Defaults to True.
        seed (int): Of the choice ``'random'``. Defaults to 0.

    Raises:
        ValueError: Another choice, or a count that the network does not have.
    """
    if which not in SELECTIONS:
        raise ValueError(f'expected a selection among {SELECTIONS}, found {which!r}')
    units = torch.cat([score.mean()[None] if blockwise else score for score in scores.values()])
    if isinstance(count, float) and 0 < count < 1:
        count = round(count * len(units))
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= len(units):
        raise ValueError('expected a share between 0 and 1, or from 0 to '
                         f'{len(units)} {"blocks" if blockwise else "heads"} to replace, found '
                         f'{count!r}')
    if which == 'random':
        units = torch.rand(len(units), generator=torch.Generator().manual_seed(seed))
    order = units.sort(descending=which == 'highest', stable=True).indices
    replaced = torch.zeros(len(units), dtype=torch.bool).index_fill_(0, order[:count], True)
    parts = replaced.split([1 if blockwise else len(score) for score in scores.values()])
    return {site: (~part.expand(len(score))).nonzero().flatten()
            for (site, score), part in zip(scores.items(), parts)}


def is_choice(structure: Any) -> bool:
    """Whether a ``structure`` of a config is a choice of heads."""
    return isinstance(structure, Mapping) and bool({*_KEYS} & {*structure})


def choose_heads(sites: Mapping[str, HostSite], choice: Mapping[str, Any]) -> dict[str, Tensor]:
    """Heads that stay attention, by site, int64, ascending, when a config chooses the others.

    Args:
        sites (Mapping[str, HostSite]): Of the dense backbone, by name. Sites of heads get the
            operator of the choice.
        choice (dict): One of

            - ``blocks`` (list[int]): blocks all of whose heads are replaced, from 0;
            - ``scores`` (str): the file ``scores.json`` of ``score_heads.py``, with ``replace``
              (int | float), and optionally ``which``, ``scattered`` (single heads; defaults to
              False) and ``seed``, see :func:`select_heads`;

            and optionally ``operator`` (str), which takes their place. Defaults to that of the
            backbone.

    Raises:
        ValueError: A backbone without such heads, other keys, blocks that do not exist or come
            twice, or scores of another network.
    """
    host = next(iter(sites.values())).host
    sites, given = find_head_sites(sites), sorted({*_KEYS} & {*choice})
    if not sites:
        raise ValueError(f'expected a backbone with replaceable heads for `{given[0]}`, found '
                         f'`{type(host).__name__}`')
    if len(given) > 1 or set(choice) - {given[0], *_KEYS[given[0]]}:
        raise ValueError(f'expected a structure with `blocks` and {list(_KEYS["blocks"])}, or with '
                         f'`scores` and {list(_KEYS["scores"])}, found {sorted(choice)}')
    options = dict(choice)
    operator = options.pop('operator', None)
    if operator is not None:
        set_operator(sites, operator)
    if 'blocks' in options:
        return _of_blocks(sites, options['blocks'])
    return select_heads(
        _read_scores(sites, options.pop('scores')), options.pop('replace', None),
        blockwise=not options.pop('scattered', False), **options)


def _of_blocks(sites: Mapping[str, Any], blocks: Sequence[int]) -> dict[str, Tensor]:
    good = isinstance(blocks, (list, tuple)) and all(
        type(block) is int and 0 <= block < len(sites) for block in blocks)
    if not good or len(set(blocks)) < len(blocks):
        raise ValueError(f'expected `blocks` to be different numbers from 0 to {len(sites) - 1}, '
                         f'found {blocks!r}')
    return {name: torch.arange(0 if index in blocks else site.total)
            for index, (name, site) in enumerate(sites.items())}


def _read_scores(sites: Mapping[str, Any], path: str | Path) -> dict[str, Tensor]:
    content = read_json(Path(path), 'a scores')
    try:
        scores = {name: torch.tensor(values, dtype=torch.float64)
                  for name, values in content['scores'].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        scores = {}
    for name, site in sites.items():
        if name not in scores or scores[name].shape != (site.total, ) or len(scores) > len(sites):
            raise ValueError(f'expected `scores` of {len(sites)} sites as of this network, with '
                             f'{site.total} numbers at site `{name}`, found others in `{path}`')
    return {name: scores[name] for name in sites}
