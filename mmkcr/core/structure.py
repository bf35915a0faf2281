"""The structure file: which units of which dimension a subnet keeps.

It is one JSON format for all methods, with one line per site, so that it can be read, edited and
diffed. A subnet is such a file and a plain state_dict.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
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


def _read_published_structure(path: Path) -> Any:
    """The structure that ``tools/publish.py`` has stored beside the weights."""
    try:
        content = torch.load(path, map_location='cpu', weights_only=True, mmap=True)
        return content['meta']['structure']
    except Exception as error:  # pickle, zip and torch each raise their own types
        raise ValueError(f'expected a structure file, or one of `tools/publish.py`, at `{path}`, '
                         f'found neither ({type(error).__name__})') from error


def read_json(path: Path, what: str) -> Any:
    """Content of a JSON file; ``what`` it holds, with an article, is for messages.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no JSON, or has a key twice.
    """
    if not path.is_file():
        raise FileNotFoundError(f'expected {what} file at `{path}`, found none')
    try:
        return json.loads(path.read_text(encoding='utf8'), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:  # huge integers and bad UTF-8 are ValueErrors
        raise ValueError(f'expected {what} file of JSON, found `{path}` that does not parse '
                         f'({error})') from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON; a repeated key is refused, because JSON would take the last of them."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError(f'a key comes twice among {[key for key, _ in pairs]!s:.120}')
    return entries


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0  # True == 1


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 3 and all(
        _is_count(side) and 0 < side <= MOST_UNITS for side in value)


#: By key of a part of the file: what its entry has to be, also in words.
Form = Mapping[str, tuple[Callable[[Any], Any], str]]
_COUNT = (_is_count, 'a count')
_DICT = (lambda value: isinstance(value, Mapping), 'a dict')
_SITE: Form = dict(
    total=(lambda value: _is_count(value) and value, 'an integer of at least 1'),
    kept=(lambda value: _is_count(value) or isinstance(value, (list, tuple)), 'unit indices'),
    operator=(lambda value: value is None or value and isinstance(value, str), 'a name'))
_PARAMS: Form = dict(dense=_COUNT, subnet=_COUNT)
_MACS: Form = dict(
    **_PARAMS, backbone=_COUNT,
    input_shape=(_is_shape, 'three sizes of an image'),
    part=(lambda value: value in ('model', 'backbone'), '`model` or `backbone`'))
_STRUCTURE: Form = dict(
    format_version=(lambda value: _is_count(value) and value == FORMAT_VERSION,
                    str(FORMAT_VERSION)),
    method=(lambda value: isinstance(value, str), 'a string'),
    backbone=(lambda value: isinstance(value, Mapping) and isinstance(value.get('type'), str),
              'a dict with a `type`'),
    sites=(lambda value: isinstance(value, Mapping) and value, 'a dict of at least one site'),
    macs=_DICT, params=_DICT, provenance=_DICT)


def _check(valid: Any, expected: str, entry: Any, where: str) -> None:
    """Refuse a content that is no structure, in one sentence."""
    if not valid:
        raise ValueError(f'expected {expected}, found {entry!s:.120} {where}')


def _check_form(data: Any, form: Form, needed: set[str], what: str, where: str) -> None:
    """Refuse a dict that lacks a needed key, or has one or an entry that its form does not have."""
    keys = set(data) if isinstance(data, Mapping) else set()
    _check(needed <= keys <= set(form), f'{what} with the keys {sorted(needed)} (and of '
           f'{sorted(set(form) - needed)})', sorted(keys, key=str), where)
    for key, value in data.items():
        valid, words = form[key]
        _check(valid(value), f'`{key}` of {what} to be {words}', value, where)


def _braces(texts: Mapping[str, str], indent: str) -> str:
    """A JSON object of values that are text, one a line."""
    lines = ',\n'.join(f'{indent}  {json.dumps(key)}: {text}' for key, text in texts.items())
    return f'{{\n{lines}\n{indent}}}'


@dataclass
class SiteEntry:
    """The units that a subnet keeps of a site.

    Args:
        total (int): Units of the dense dimension.
        kept (list[int]): Kept units, ascending.
        operator (str, optional): Operator that computes the units that are not kept, so that
            ``kept`` may be empty. Defaults to None: the other units are removed.
    """

    total: int
    kept: list[int]
    operator: str | None = None

    @classmethod
    def from_dict(cls, name: str, data: Any) -> 'SiteEntry':
        """Check an entry of ``sites``; a count as ``kept`` stands for the first units."""
        where = f'at site `{name}`'
        _check_form(data, _SITE, {'kept', 'total'}, 'a site', where)
        total, kept, operator = data['total'], data['kept'], data.get('operator')
        # bounded by `total` before the list is made: a file must not fill the memory
        units = list(range(min(kept, total + 1))) if _is_count(kept) else list(kept)
        _check(all(map(_is_count, units)) and all(
            low < high for low, high in zip(units, [*units[1:], total])),
            f'`kept` of ascending unit indices within [0, {total})', kept, where)
        _check(units or operator, '`kept` of a unit, or an `operator`', kept, where)
        return cls(total, units, operator)

    def to_dict(self) -> dict[str, Any]:
        """The entry as plain JSON types; ``operator`` is left out if there is none."""
        return {key: value for key, value in vars(self).items() if value is not None}


@dataclass
class Structure:
    """A subnet's structure.

    Args:
        backbone (dict): ``type`` (registered name) and arguments of the searched backbone.
        sites (dict[str, SiteEntry]): Kept units by site, which is named after the module path
            within the backbone and its kind, ``<module path>.<kind>``.
        method (str): Name of the method. Defaults to ''.
        macs (dict): MACs for one image: ``dense``, ``subnet`` and the ``input_shape`` (C, H, W)
            of the count. ``part`` is ``'backbone'`` if the backbone alone was counted. Otherwise
            ``backbone`` has the MACs of the subnet's backbone.
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
            ValueError: The content is not a structure; the message says what and where.
        """
        if isinstance(source, cls):
            return source
        if isinstance(source, Mapping):
            return cls._from_dict(source, 'in the given dict')
        path = Path(source)
        published = path.suffix == '.pth' and path.is_file()
        data = _read_published_structure(path) if published else read_json(path, 'a structure')
        return cls._from_dict(data, f'in `{path}`')

    @classmethod
    def _from_dict(cls, data: Any, where: str) -> 'Structure':
        keys = set(data) if isinstance(data, Mapping) else set()
        _check(not keys & {'order', 'orders'}, 'a structure of one network', 'an order',
               f'{where}, which is no longer read: compress the dense checkpoint with the targets '
               'themselves (`mmkcr compress --target-macs 80% 60%`)')
        _check('masks' not in keys, 'a structure with whole masks on queries and keys',
               'folded ones', f'{where}, which are no longer read: take the structure and weights '
               'from before the fold')
        _check_form(data, _STRUCTURE, {'format_version', 'backbone', 'sites'}, 'a structure', where)
        for key, form, needed in (('macs', _MACS, {'dense', 'input_shape', 'subnet'}),
                                  ('params', _PARAMS, {'dense', 'subnet'})):
            if counts := data.get(key):
                _check_form(counts, form, needed, f'`{key}` of a structure', where)
                _check(counts.get('backbone', 0) <= counts['subnet'],
                       '`macs` of a backbone within those of its subnet', counts, where)
        # before any site is expanded, see `SiteEntry.from_dict`
        units = sum(site['total'] for site in data['sites'].values()
                    if isinstance(site, Mapping) and _is_count(site.get('total')))
        _check(units <= MOST_UNITS, f'{MOST_UNITS} units at most in all sites of a structure',
               units, where)
        sites = {name: SiteEntry.from_dict(name, site) for name, site in data['sites'].items()}
        return cls(**{**data, 'sites': sites})

    def to_dict(self) -> dict[str, Any]:
        """The structure as plain JSON types."""
        data = {name: getattr(self, name) for name in self.__dataclass_fields__}
        data['sites'] = {name: site.to_dict() for name, site in self.sites.items()}
        return {'format_version': data.pop('format_version'), **data}

    def dumps(self) -> str:
        """The file's text, with one line per key and one line per site."""
        texts = {key: json.dumps(value, default=str) for key, value in self.to_dict().items()}
        texts['sites'] = _braces({name: json.dumps(site.to_dict())
                                  for name, site in self.sites.items()}, '  ')
        return _braces(texts, '') + '\n'

    def save(self, path: str | Path) -> None:
        """Write the file, by a temporary file and a rename, unless the structure is not valid."""
        self._from_dict(self.to_dict(), 'in the structure to save')
        with atomic_write(path) as temporary:
            temporary.write_text(self.dumps(), encoding='utf8')

    def validate(self, widths: Mapping[str, int], backbone: str | None = None) -> None:
        """Check that the structure belongs to a backbone of a registered type name.

        Args:
            widths (Mapping[str, int]): Units of every site of the backbone.
            backbone (str, optional): The name. Defaults to None: any.

        Raises:
            ValueError: The types, the sites or their widths differ.
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
