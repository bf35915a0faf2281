"""Tables for the terminal."""

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 160


def format_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = '') -> str:
    """Lay out a table as plain text.

    Args:
        columns (Sequence[str]): Headings.
        rows (Sequence[Sequence]): Cells; columns after the first are aligned
            to the right.
        title (str): Shown above. Defaults to none.
    """
    table = Table(title=title or None, title_justify='left')
    for number, column in enumerate(columns):
        table.add_column(column, justify='right' if number else 'left', overflow='fold')
    for row in rows:
        table.add_row(*map(str, row))
    console = Console(file=io.StringIO(), width=WIDTH, markup=False, highlight=False)
    console.print(table)
    return '\n'.join(line.rstrip() for line in console.file.getvalue().rstrip().splitlines())
