"""Progress bars and tables, as text."""

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

Item = TypeVar('Item')

#: Seconds between two lines of a log.
PERIOD = 30
#: Columns of a table.
WIDTH = 160
#: Whether :func:`show_progress` shows a loop now.
_showing = False


def show_progress(items: Iterable[Item], what: str, total: int | None = None,
                  refresh: bool = True, visible: bool = True,
                  size: Callable[[Item], int] | None = None) -> Iterator[Item]:
    """Yield items, with a bar and the remaining time on standard error.

    If standard error is not a terminal, as in logs and pipes, there is a line every
    :data:`PERIOD` seconds instead. Processes other than the first show nothing, nor do loops inside
    a loop with a bar.

    Args:
        items (Iterable): The items.
        what (str): Text before the bar.
        total (int, optional): Number of items. Defaults to None: their length, if they have one.
        refresh (bool): Draw from a separate thread. False draws only between items, for loops that
            are timed. Defaults to True.
        visible (bool): Whether to show anything. Defaults to True.
        size (Callable, optional): Gives the count of an item, as the images of a batch. Defaults
            to None: 1.
    """
    global _showing
    if not visible or _showing or os.environ.get('RANK', '0') != '0':
        yield from items
        return
    if total is None and hasattr(items, '__len__'):
        total = len(items)
    terminal, count, start = sys.stderr.isatty(), 0, time.monotonic()
    last = start
    bar = Progress(TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(),
                   TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=refresh,
                   transient=True, speed_estimate_period=3600)  # items may take minutes
    task = bar.add_task(what, total=total)
    _showing = True
    try:
        with bar if terminal else contextlib.nullcontext():
            for item in items:
                yield item
                count += 1 if size is None else size(item)
                if terminal:
                    bar.update(task, completed=count, refresh=not refresh)
                elif (now := time.monotonic()) - last >= PERIOD:
                    last, spent = now, now - start
                    of, left = '', ''
                    if total is not None:
                        of, left = f' of {total}', f', {spent * (total / count - 1):.0f} s left'
                    print(f'{what}: {count}{of} after {spent:.0f} s{left}', file=sys.stderr,
                          flush=True)
    finally:
        _showing = False


def format_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = '') -> str:
    """Lay out a table as plain text.

    Args:
        columns (Sequence[str]): Headings.
        rows (Sequence[Sequence]): Cells; columns after the first are aligned to the right.
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
