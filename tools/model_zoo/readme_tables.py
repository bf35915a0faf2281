"""Tables of the READMEs, from the metafiles.

A README asks for a table by a pair of comments, between which everything is
generated: ``<!-- table: kcr/retrain -->`` and ``<!-- /table -->``. The name is
a method's folder below configs/ and either a folder of configs, for our own
numbers; or ``reported``, for those of the paper, which are never put beside
ours; or ``sizes``, our sizes at the reported MACs against the reported ones.
With --check nothing is written, and the exit status is 1 if a table is not up
to date.

Example:
    python tools/model_zoo/readme_tables.py --check
"""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from mmkcr.cli.command import Parser, command
from mmkcr.core.io import atomic_write

ROOT = Path(__file__).resolve().parents[2]
_TABLE = re.compile(r'(<!-- table: (\S+) -->\n)(.*?)(<!-- /table -->)', re.DOTALL)
_TOP1 = 'Top 1 Accuracy'
_REPORTED = ('Parameters (M)', 'MACs (G)', _TOP1, 'Source')
_DENSE = ('box AP', 'mask AP', 'mIoU')
_NOTE = ('\\* Not run. The size of a subnet, which a search would decide, is that with one keep '
         'ratio everywhere at the target of the metafile. MACs include attention products.\n')


def read_metafile(method: str, root: Path = ROOT) -> dict[str, Any]:
    """Content of a method's metafile.

    Raises:
        FileNotFoundError: The method has none.
    """
    path = root / 'configs' / method / 'metafile.yml'
    if not path.is_file():
        raise FileNotFoundError(f'expected a metafile at `{path}`, found none')
    return yaml.safe_load(path.read_text())


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; columns after the first are aligned to the right."""
    lines = [columns, [':--'] + ['--:'] * (len(columns) - 1), *rows]
    return ''.join(f'| {" | ".join(line)} |\n' for line in lines)


def reported_table(content: dict[str, Any]) -> str:
    """The paper's numbers, as reported; a row a result, its models beside each other."""
    rows = [row for row in _reported(content) if not set(_DENSE) & set(row)]
    cells = [[row['Name'], row.get('Data', 'ImageNet-1k'),
              *(str(row.get(key, '-')) for key in _REPORTED)] for row in rows]
    return markdown(['As reported', 'Data', 'Params (M)', 'MACs (G)', 'Top-1 (%)', 'Source'],
                    cells)


def dense_table(content: dict[str, Any]) -> str:
    """The paper's numbers on dense tasks, as reported."""
    rows = [row for row in _reported(content) if set(_DENSE) & set(row)]
    columns = ('Name', 'Data', *_DENSE, 'Source')
    return markdown(['As reported', *columns[1:]],
                    [[str(row.get(key, '-')) for key in columns] for row in rows])


def _reported(content: dict[str, Any]) -> list[dict[str, Any]]:
    """What the paper reports of others and of the models here."""
    return [entry for collection in content['Collections']
            for entry in collection.get('Reported Baselines', [])] + [
        dict(entry['Reported'], Name=f'`{entry["Name"]}`', Data=_data(entry))
        for entry in content['Models'] if 'Reported' in entry]


def _data(entry: dict[str, Any]) -> str:
    return entry['Metadata']['Training Data']


def own_table(content: dict[str, Any], method: str, folder: str, readme: Path,
              root: Path = ROOT) -> str:
    """Our own models of one folder of configs; those not run have a star.

    Raises:
        ValueError: No model of the metafile has its config there.
    """
    start = f'configs/{method}/{folder}/'
    entries = [entry for entry in content['Models'] if entry['Config'].startswith(start)]
    if not entries:
        raise ValueError(f'expected models with a config below `{start}` for the table '
                         f'`{method}/{folder}`, found none')
    first = [] if folder in ('detection', 'segmentation', 'vqa') else [_TOP1]
    metrics = list(dict.fromkeys([*first, *(name for e in entries for name in _metrics(e))]))
    rows = [[
        f'`{entry["Name"]}`' + ('' if _metrics(entry) else ' \\*'), _data(entry),
        _scaled(entry['Metadata']['Parameters'], 6), _scaled(entry['Metadata']['FLOPs'], 9),
        *(str(_metrics(entry).get(name, '-')) for name in metrics),
        _config(entry, root, readme)
    ] for entry in entries]
    table = markdown(['Ours', 'Data', 'Params (M)', 'MACs (G)', *metrics, 'Config'], rows)
    return table + ('' if all(map(_metrics, entries)) else '\n' + _NOTE)


def _config(entry: dict[str, Any], root: Path, readme: Path) -> str:
    """A link to a model's config, and what ``--cfg-options`` changes in it."""
    options = ' '.join(f'{key}={value}' for key, value in entry.get('Options', {}).items())
    link = f'[config]({os.path.relpath(root / entry["Config"], readme.parent)})'
    return f'{link} `{options}`' if options else link


def sizes_table(content: dict[str, Any]) -> str:
    """Parameters with one keep ratio everywhere beside those that the paper reports."""
    rows = []
    for entry in content['Models']:
        reported = entry.get('Reported', {}).get('Parameters (M)')
        if reported is None or '/retrain/' not in entry['Config']:
            continue
        ours, data = entry['Metadata'], entry['Reported']
        rows.append([f'`{entry["Name"]}`', str(data['MACs (G)']), _scaled(ours['FLOPs'], 9),
                     f'{ours["Keep Ratio"]:.3f}', str(reported), _scaled(ours['Parameters'], 6),
                     f'{ours["Parameters"] / 1e4 / reported - 100:+.1f} %'])
    return markdown(['Model', 'MACs (G) reported', 'ours', 'Keep ratio', 'Params (M) reported',
                     'ours', 'Difference'], rows)


def _scaled(value: int, exponent: int) -> str:
    value = value / 10**exponent
    return f'{value:.3g}' if value < 1 else f'{value:.2f}' if value < 10 else f'{value:.1f}'


def _metrics(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for result in entry.get('Results') or []
            for name, value in result['Metrics'].items()}


def render(readme: Path, root: Path = ROOT) -> str:
    """A README's text with its tables as the metafiles have them."""

    def table(match: re.Match) -> str:
        method, _, name = match[2].partition('/')
        content = read_metafile(method, root)
        special = {'reported': reported_table, 'reported-dense': dense_table,
                   'sizes': sizes_table}
        body = special[name](content) if name in special else \
            own_table(content, method, name, readme, root)
        return f'{match[1]}\n{body}\n{match[4]}'

    return _TABLE.sub(table, readme.read_text())


def readmes(root: Path = ROOT) -> list[Path]:
    """READMEs that may hold tables."""
    return [path for path in (root / 'README.md', *sorted((root / 'configs').glob('*/README.md')))
            if path.is_file()]


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Write or check the tables."""
    parser = Parser(__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing, compare')
    args = parser.parse_args(argv)
    stale = [path for path in readmes() if render(path) != path.read_text()]
    for path in stale:
        print(f'{"stale" if args.check else "written"}: {path.relative_to(ROOT)}')
        if not args.check:
            text = render(path)
            with atomic_write(path) as temporary:
                temporary.write_text(text)
    sys.exit(1 if args.check and stale else 0)


if __name__ == '__main__':
    main()
