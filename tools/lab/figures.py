"""Figures that are written completely or not at all, without a display."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from mmkcr.core import atomic_write
from .palette import settings

FORMATS = ('.png', '.jpg', '.pdf', '.svg')


@contextmanager
def saved_figure(path: str | Path, size: tuple[float, float],
                 **grid: Any) -> Iterator[tuple[Figure, Any]]:
    """Provide a figure that is saved when the block ends.

    pyplot is not used, so no figure stays open and no display is needed. Colours are those of
    :mod:`~lab.palette`.

    Args:
        path (str | Path): ``.png``, ``.jpg``, ``.pdf`` or ``.svg``; its folder
            is made.
        size (tuple[float, float]): Width and height in inches.
        **grid: Arguments of :meth:`matplotlib.figure.Figure.subplots`.

    Yields:
        tuple[Figure, Axes]: The figure and its axes.

    Raises:
        ValueError: Another kind of file.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f'expected a figure file ({", ".join(FORMATS)}), found `{path}`')
    with rc_context(settings()):
        figure = Figure(figsize=size, layout='constrained')
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(**grid)
        with atomic_write(path) as temporary:
            figure.savefig(temporary, dpi=120)
