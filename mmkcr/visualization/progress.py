"""Progress bars for long loops."""

import os
import sys
from typing import Iterable, Iterator, Optional, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Item = TypeVar('Item')


def shown(items: Iterable[Item], what: str, total: Optional[int] = None,
          refresh: bool = True) -> Iterator[Item]:
    """Yield items, with a bar and the remaining time on standard error.

    Nothing is shown if standard error is not a terminal, as in logs and pipes, nor in
    processes other than the first.

    Args:
        items (Iterable): The items.
        what (str): Text before the bar.
        total (int, optional): Number of items. Defaults to None: their length, if they have one.
        refresh (bool): Draw from a separate thread, ten times a second. False draws only between
            items, for loops that are timed. Defaults to True.

    Yields:
        Item: Each, in order.
    """
    if not sys.stderr.isatty() or os.environ.get('RANK', '0') != '0':
        yield from items
        return
    if total is None and hasattr(items, '__len__'):
        total = len(items)
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=refresh,
                  transient=True) as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            yield item
            bar.update(task, advance=1, refresh=not refresh)
