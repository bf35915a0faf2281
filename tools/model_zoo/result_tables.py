"""Tables of the pages, from docs/results/*.csv.

Every measured and every reported number is a row of a CSV, all of one schema (``FIELDS``). A page
asks for a table by a pair of comments, between which everything is generated:
``<!-- results: NAME -->`` and ``<!-- /results -->``. docs/results/tables.yml says for each NAME
which rows (``where``: a column and its values), what stands in a line (``rows``), in a column
(``columns``) and in a cell (``value``). Rows whose ``columns`` is empty may show several fields,
a column each (``beside``); a cell without a row says what ``missing`` says of its column.
With --check nothing is written; the exit status is 1 if a table is not up to date.

Examples:
    python tools/model_zoo/result_tables.py
    python tools/model_zoo/result_tables.py --check
"""

import csv
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mmkcr.cli.command import Parser, command
from mmkcr.core.io import atomic_write

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / 'docs' / 'results'
FIELDS = ('study', 'network', 'task', 'method', 'control', 'metric', 'budget', 'seed', 'before',
          'after', 'macs', 'params', 'time_ratio', 'runtime', 'machine', 'versions', 'commit',
          'command', 'source', 'note')
_TABLE = re.compile(r'(<!-- results: (\S+) -->\n)(.*?)(<!-- /results -->)', re.DOTALL)


def read_results(folder: Path = RESULTS) -> list[dict[str, str]]:
    """Rows of all CSV files of a folder, in order of the files' names.

    Raises:
        ValueError: A file has other columns than ``FIELDS``.
    """
    rows = []
    for path in sorted(folder.glob('*.csv')):
        with path.open(newline='', encoding='utf8') as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != FIELDS:
                raise ValueError(f'expected the columns {", ".join(FIELDS)} in `{path.name}`, '
                                 f'found {reader.fieldnames}')
            rows += list(reader)
    return rows


def matches(row: dict[str, str], where: dict[str, Any]) -> bool:
    """Whether a row has the wanted values, by column: a list, or one."""
    return all(row[key] in (values if isinstance(values, list) else [str(values)])
               for key, values in where.items())


def pivot(rows: list[dict[str, str]], table: dict[str, Any]) -> str:
    """A Markdown table of the rows that a definition of tables.yml asks for.

    Raises:
        ValueError: Nothing is found, or two rows for one cell.
    """
    found = [row for row in rows if matches(row, table['where'])]
    if not found:
        raise ValueError(f'expected rows with {table["where"]} in docs/results, found none')
    names = table.get('names', {})
    lines, heads, cells = {}, {}, {}
    for row in found:
        line = ', '.join(row[key] for key in table['rows'].split() if row[key])
        column = row[table['columns']] if 'columns' in table else ''
        shown = table['value'] if column else table.get('beside', table['value'])
        for value in shown.split():
            head = column or value
            if not row[value]:
                continue
            if cells.setdefault((line, head), row[value]) != row[value]:
                raise ValueError(f'expected one value for `{line}` and `{head}`, found '
                                 f'{cells[line, head]} and {row[value]}')
            lines[line], heads[head] = None, None
    order, lines = (sorted(found, key=lambda name: list(names).index(name) if name in names
                           else len(names)) for found in (heads, lines))
    text = [[table['corner'], *(names.get(head, head) for head in order)],
            [':--', *(['--:'] * len(order))]]
    missing = table.get('missing', {})
    text += [[names.get(line, line),
              *(cells.get((line, head), missing.get(head, '')) for head in order)]
             for line in lines]
    return ''.join(f'| {" | ".join(line)} |\n' for line in text)


def pages() -> list[Path]:
    """README, pages of the site and READMEs of the methods."""
    return [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md')),
            *sorted((ROOT / 'configs').rglob('README.md'))]


def render(page: str, rows: list[dict[str, str]], tables: dict[str, Any]) -> str:
    """A page with its tables made anew."""
    return _TABLE.sub(lambda found: found[1] + pivot(rows, tables[found[2]]) + found[4], page)


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Write or check the tables."""
    parser = Parser(__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing, compare')
    args = parser.parse_args(argv)
    rows = read_results()
    tables = yaml.safe_load((RESULTS / 'tables.yml').read_text(encoding='utf8'))
    stale = 0
    for path in pages():
        page = path.read_text(encoding='utf8')
        fresh = render(page, rows, tables)
        if fresh == page:
            continue
        stale += 1
        print(f'{"stale" if args.check else "written"}: {path.relative_to(ROOT)}')
        if not args.check:
            with atomic_write(path) as temporary:
                temporary.write_text(fresh, encoding='utf8')
    if not stale:
        print('All tables are those of docs/results')
    sys.exit(1 if args.check and stale else 0)


if __name__ == '__main__':
    main()
