"""The structure file: which units of which dimension a subnet keeps.

It is one JSON format for all methods, with one line per site, so that it can be
read, edited and diffed. A subnet is such a file and a plain state_dict.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .io import atomic_write

FORMAT_VERSION = 1
#: Limit on the units of a structure, as a file must not fill the memory.
MOST_UNITS = 2**22
#: Buffer of a subnet with a digest of its kept units: its weights are refused elsewhere.
KEPT = 'kept_units'


def digest(sites: Mapping[str, 'SiteEntry']) -> torch.Tensor:
    """A number, int64, that tells kept units of a structure from others, see :data:`KEPT`."""
    text = json.dumps({name: list(entry.kept) for name, entry in sites.items()}, sort_keys=True)
    return torch.tensor(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], 'big'))


def _published_structure(path: Path) -> Any:
    """The structure that ``tools/publish.py`` has stored beside the weights."""
    try:
        content = torch.load(path, map_location='cpu', weights_only=True, mmap=True)
        return content['meta']['structure']
    except Exception as error:  # pickle, zip and torch each raise their own types
        raise ValueError(f'expected a structure file, or one of `tools/publish.py`, at `{path}`, '
                         f'found neither ({type(error).__name__})') from error


def read_json(path: Path, what: str) -> Any:
    """Content of a JSON file.

    Args:
        path (Path): The file.
        what (str): What it holds, with an article, for messages.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not JSON.
    """
    if not path.is_file():
        raise FileNotFoundError(f'expected {what} file at `{path}`, found none')
    try:
        return json.loads(path.read_text(encoding='utf8'))
    except (ValueError, RecursionError) as error:  # huge integers and bad UTF-8 are ValueErrors
        raise ValueError(f'expected {what} file of JSON, found `{path}` that does not parse '
                         f'({error})') from error


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_counts(data: Mapping[str, Any], where: str) -> None:
    """Refuse ``macs`` and ``params`` that are incomplete or whose values are not counts."""
    for part, required, optional in (
            ('macs', ['dense', 'input_shape', 'subnet'], ['backbone', 'part']),
            ('params', ['dense', 'subnet'], [])):
        recorded = data.get(part) or {}
        counts = {key: value for key, value in recorded.items()
                  if key not in ('input_shape', 'part')}
        shape = recorded.get('input_shape', [1, 1, 1])
        if recorded and not (
                set(required) <= set(recorded) <= {*required, *optional}
                and all(map(_is_count, counts.values()))
                and recorded.get('backbone', 0) <= recorded['subnet']  # a part of it
                and recorded.get('part', 'model') in ('model', 'backbone')
                and isinstance(shape, (list, tuple)) and len(shape) == 3
                and all(_is_count(side) and 0 < side <= MOST_UNITS for side in shape)):
            raise ValueError(
                f'expected `{part}` of a structure with counts as {required}'
                f'{f" (and {optional})" if optional else ""}, or none, found '
                f'{str(dict(recorded)):.120} in {where}')


@dataclass
class SiteEntry:
    """The units that a subnet keeps of a site.

    Args:
        total (int): Units of the dense dimension.
        kept (list[int]): Kept units, ascending.
        operator (str, optional): Operator that computes the units that are not
            kept. With one, ``kept`` may be empty. Defaults to None: the other
            units are removed.
    """

    total: int
    kept: list[int]
    operator: str | None = None

    @classmethod
    def from_dict(cls, name: str, data: Any) -> 'SiteEntry':
        """Check an entry of ``sites``; a count as ``kept`` stands for the first units.

        Raises:
            ValueError: A key or a type is wrong, or the units are not ascending within [0, total).
        """
        if not isinstance(data, Mapping) or set(data) - {'operator'} != {'total', 'kept'}:
            keys = sorted(data) if isinstance(data, Mapping) else data
            raise ValueError(f'expected the keys `total` and `kept` (and `operator`) at site '
                             f'`{name}`, found {keys!r}')
        total, units, operator = data['total'], data['kept'], data.get('operator')
        if operator is not None and not (isinstance(operator, str) and operator):
            raise ValueError(f'expected `operator` at site `{name}` to be a name, found '
                             f'{operator!r}')
        if not _is_count(total) or total < 1:
            raise ValueError(f'expected an integer `total` of at least 1 at site `{name}`, found '
                             f'{str(total):.40}')
        # bounded by `total` before the list is made: a file must not fill the memory
        kept = list(range(units)) if _is_count(units) and units <= total else units
        ascending = isinstance(kept, (list, tuple)) and all(map(_is_count, kept)) and all(
            low < high for low, high in zip(kept, [*kept[1:], total]))
        # only with an operator may no unit be kept
        if not ascending or len(kept) + (operator is not None) == 0:
            raise ValueError(f'expected `kept` at site `{name}` to be ascending unit indices '
                             f'within [0, {total}), found {str(units):.80}')
        return cls(total, list(kept), operator)

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain JSON types; ``operator`` is left out if there is none."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass
class Structure:
    """A subnet's structure.

    Args:
        backbone (dict): ``type`` (registered name) and the arguments that the
            searched backbone was built with.
        sites (dict[str, SiteEntry]): Kept units by site. A site's name is the
            module path within the backbone and its kind, ``<module path>.<kind>``.
        method (str): Name of the method. Defaults to ''.
        macs (dict): MACs for one image: ``dense``, ``subnet`` and the
            ``input_shape`` (C, H, W) of the count. ``part`` is ``'backbone'`` if the
            backbone alone was counted. Otherwise ``backbone`` has the MACs of the
            subnet's backbone.
        params (dict): Parameters, ``dense`` and ``subnet``.
        provenance (dict): Config, checkpoint hash, seed, epoch, versions.
        format_version (int): Version of this file format.
    """

    backbone: dict[str, Any]
    sites: dict[str, SiteEntry]
    method: str = ''
    macs: dict[str, Any] = field(default_factory=dict)
    params: dict[str, int] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @classmethod
    def load(cls, source: 'str | Path | Mapping | Structure') -> 'Structure':
        """Read and check a structure.

        Args:
            source (str | Path | dict | Structure): A JSON file, a file of ``tools/publish.py``
                (.pth), parsed content, or a structure, which is returned as it is.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The file is not JSON, or its content is not a structure.
        """
        if isinstance(source, cls):
            return source
        if isinstance(source, Mapping):
            return cls._from_dict(source, 'the given dict')
        path = Path(source)
        published = path.suffix == '.pth' and path.is_file()
        return cls._from_dict(_published_structure(path) if published else
                              read_json(path, 'a structure'), f'`{path}`')

    @classmethod
    def _from_dict(cls, data: Any, where: str) -> 'Structure':
        names = set(cls.__dataclass_fields__)
        required = {'format_version', 'backbone', 'sites'}
        keys = set(data) if isinstance(data, Mapping) else set()
        if keys & {'order', 'orders'}:
            raise ValueError(f'expected a structure of one network, found an order in {where}, '
                             'which is no longer read: compress the dense checkpoint with the '
                             'targets themselves (`mmkcr compress --target-macs 80% 60%`)')
        if 'masks' in keys:
            raise ValueError('expected a structure with whole masks on queries and keys, found '
                             f'folded ones in {where}, which are no longer read: take the '
                             'structure and weights from before the fold')
        if not required <= keys <= names:
            raise ValueError(f'expected a structure with the keys {sorted(required)} (and of '
                             f'{sorted(names - required)}), found {sorted(keys)} in {where}')
        # `_is_count` first: True == 1
        if not _is_count(data['format_version']) or data['format_version'] != FORMAT_VERSION:
            raise ValueError(f'expected structure `format_version` {FORMAT_VERSION}, found '
                             f'{data["format_version"]!r} in {where}')
        for key, kind in dict(backbone=Mapping, sites=Mapping, macs=Mapping, params=Mapping,
                              provenance=Mapping, method=str).items():
            if not isinstance(data.get(key, kind() if kind is str else {}), kind):
                raise ValueError(f'expected `{key}` of a structure to be a '
                                 f'{"string" if kind is str else "dict"}, found '
                                 f'{str(data[key]):.60} in {where}')
        if not isinstance(data['backbone'].get('type'), str) or not data['sites']:
            raise ValueError('expected a structure with a backbone `type` and at least one site, '
                             f'found backbone {str(data["backbone"]):.80} and '
                             f'{len(data["sites"])} sites in {where}')
        _check_counts(data, where)
        # before any site is expanded, see `SiteEntry.from_dict`
        units = sum(site['total'] for site in data['sites'].values()
                    if isinstance(site, Mapping) and _is_count(site.get('total')))
        if units > MOST_UNITS:
            raise ValueError(f'expected {MOST_UNITS} units at most in all sites of a structure, '
                             f'found {str(units):.40} in {where}')
        sites = {name: SiteEntry.from_dict(name, site) for name, site in data['sites'].items()}
        return cls(**{**data, 'sites': sites})

    def to_dict(self) -> dict[str, Any]:
        """The structure as plain JSON types."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data['sites'] = {name: site.to_dict() for name, site in self.sites.items()}
        return {'format_version': data.pop('format_version'), **data}

    def dumps(self) -> str:
        """The file's text, with one line per key and one line per site."""
        lines = []
        for key, value in self.to_dict().items():
            if key == 'sites' and value:
                body = ',\n'.join(f'    {json.dumps(name)}: {json.dumps(site)}'
                                  for name, site in value.items())
                text = f'{{\n{body}\n  }}'
            else:
                text = json.dumps(value, default=str)
            lines.append(f'  {json.dumps(key)}: {text}')
        return '{\n' + ',\n'.join(lines) + '\n}\n'

    def save(self, path: str | Path) -> None:
        """Write the file, by a temporary file and a rename.

        Raises:
            ValueError: The structure is not valid; nothing is written.
        """
        self._from_dict(self.to_dict(), 'the structure to save')
        with atomic_write(path) as temporary:
            temporary.write_text(self.dumps(), encoding='utf8')

    def validate(self, widths: Mapping[str, int], backbone: str | None = None) -> None:
        """Check that the structure belongs to a backbone.

        Args:
            widths (Mapping[str, int]): Units of every site of the backbone.
            backbone (str, optional): The backbone's registered type name.

        Raises:
            ValueError: The backbone type differs, the backbone or the structure
                lacks a site of the other, or a width differs.
        """
        type_name = self.backbone['type'].split('.')[-1]  # without the scope, such as `mmkcr.`
        if backbone is not None and type_name != backbone:
            raise ValueError(f'expected a structure for `{backbone}`, found one for `{type_name}`')
        for name in sorted(set(widths) | set(self.sites)):
            here, there = widths.get(name), self.sites.get(name)
            if here is None or there is None:
                raise ValueError(
                    f'expected the {len(widths)} sites of the backbone in the structure, found '
                    f'site `{name}` only in the {"structure" if here is None else "backbone"}')
            if here != there.total:
                raise ValueError(f'expected {here} units at site `{name}`, found a structure '
                                 f'for {there.total}')

    def sizes(self) -> dict[str, int]:
        """Number of kept units by site."""
        return {name: len(site.kept) for name, site in self.sites.items()}
