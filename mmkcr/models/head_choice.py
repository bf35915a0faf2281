"""Which heads an operator replaces: a list of blocks, or scores (drop-in convolution, section 3.3).

Both may stand where a structure file does, for example
``structure=dict(blocks=[8, 6, 4, 9])`` or ``structure=dict(scores='scores.json', replace=12)``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmkcr.core import Structure
from mmkcr.core.structure import read_json
from .layers.head_operators import head_operator

if TYPE_CHECKING:
    from .search_space import SearchSpace

SELECTIONS = ('lowest', 'highest', 'random')
#: A number of blocks or heads (int), or a share of all (float between 0 and 1).
Count = int | float
_KEYS = dict(blocks=('operator', ),
             scores=('replace', 'which', 'scattered', 'seed', 'operator'))


def head_sites(space: 'SearchSpace') -> dict[str, Any]:
    """The sites whose units are heads that an operator may compute, by name, in block order."""
    return {name: site for name, site in space.sites.items() if site.kind == 'head_operator'}


def set_operator(space: 'SearchSpace', operator: str) -> None:
    """Set what computes replaced heads in new structures; an unknown name is refused."""
    head_operator(operator)
    for site in head_sites(space).values():
        site.operator = operator


def select_heads(scores: Mapping[str, Tensor], count: Count, which: str = 'lowest',
                 blockwise: bool = True, seed: int = 0) -> dict[str, Tensor]:
    """Heads that stay attention, by site, int64, ascending, when so many others are replaced.

    ``count`` is of single heads, or if ``blockwise`` of blocks, whose score is the mean of their
    heads' ``scores`` (H,); a float between 0 and 1 is a share of all, rounded. ``which`` is one of
    :data:`SELECTIONS`; ``seed`` is of ``'random'``.
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


def choose_heads(space: 'SearchSpace', choice: Mapping[str, Any]) -> Structure:
    """The structure of a backbone some of whose heads are chosen to be replaced.

    Args:
        space (SearchSpace): Of the dense backbone.
        choice (dict): One of

            - ``blocks`` (list[int]): blocks all of whose heads are replaced, from 0;
            - ``scores`` (str): the file ``scores.json`` of ``score_heads.py``, with ``replace``
              (int | float), and optionally ``which``, ``scattered`` (single heads; defaults to
              False) and ``seed``, see :func:`select_heads`;

            and optionally ``operator`` (str), which takes their place. Defaults to that of the
            backbone.

    Sites other than heads are whole. Other keys, blocks that do not exist or come twice, and scores
    of another network are refused.
    """
    sites, given = head_sites(space), sorted({*_KEYS} & {*choice})
    if not sites:
        raise ValueError(f'expected a backbone with replaceable heads for `{given[0]}`, found '
                         f'`{space.type_name}`')
    if len(given) > 1 or set(choice) - {given[0], *_KEYS[given[0]]}:
        raise ValueError(f'expected a structure with `blocks` and {list(_KEYS["blocks"])}, or with '
                         f'`scores` and {list(_KEYS["scores"])}, found {sorted(choice)}')
    options = dict(choice)
    operator = options.pop('operator', None)
    if operator is not None:
        set_operator(space, operator)
    if 'blocks' in options:
        return space.structure_for(_of_blocks(sites, options['blocks']))
    return space.structure_for(select_heads(
        _read_scores(sites, options.pop('scores')), options.pop('replace', None),
        blockwise=not options.pop('scattered', False), **options))


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
