"""A frontier for colleagues: a table, a page and a picture, light and dark."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmkcr.core import atomic_write
from mmkcr.visualization import format_table
from .file_bench import Quality
from .frontier import NAMES, Row, drop_beaten, drop_failed, find_better_row, recommend

#: Columns of files that are not printed.
HIDDEN = 'note', 'file'
#: Style of matplotlib, by picture.
THEMES = {'frontier.png': 'default', 'frontier-dark.png': 'dark_background'}
#: Colours of beaten rows and of the others, visible on light and on dark pages.
BEATEN, UNBEATEN = '#8b949e', '#009688'


@dataclass(frozen=True, repr=False)
class FrontierResult:
    """Result of :func:`mmkcr.frontier`; printed, it is a table and a recommendation.

    Args:
        rows (list[Row]): All rows.
        agreement (Quality): How :attr:`Row.agreement` is shown.
        keep (float): Share of the dense network's quality that must stay, 0 to 1.
        about (list[str]): Sentences about the measurement, the machine and the terms.
        folder (Path): Of the files.
    """

    rows: list[Row]
    agreement: Quality
    keep: float
    about: list[str]
    folder: Path

    @property
    def quality(self) -> Quality:
        """How :attr:`Row.quality` is shown."""
        name = self.rows[0].metric_name
        return Quality(name, 1, f'{name} {{:.4g}}', '') if name else self.agreement

    @property
    def recommendation(self) -> str:
        """The recommendation of :func:`~mmkcr.deploy.frontier.recommend`, in words."""
        return recommend(self.rows, self.keep, self.quality)

    def table(self) -> list[dict[str, str]]:
        """Rows as texts, by headings with units."""
        def cell(value: float | None, form: str = '.3f') -> str:
            return '' if value is None else format(value, form)

        lines, evaluated = [], self.rows[0].metric is not None  # the dense network
        for row in self.rows:
            lower, upper = row.quartiles or (None, None)
            other = find_better_row(row, self.rows) if row in drop_failed(self.rows) else None
            agrees = None if row.agreement is None else self.agreement.scale * row.agreement
            metric = {self.quality.heading: cell(row.metric, '.4g')} if evaluated else {}
            lines.append({
                'network': row.levers, 'runtime': NAMES[row.runtime],
                'CPU threads': str(row.threads),
                'time (dense = 1)': cell(row.ratio), 'lower quartile (dense = 1)': cell(lower),
                'upper quartile (dense = 1)': cell(upper), 'one image (ms)': cell(row.ms, '.4g'),
                'file (MB)': cell(row.bytes / 1e6 or None, '.4g'),
                self.agreement.heading: cell(agrees, '.4g'), **metric,
                'beaten by (no slower, no worse)': other.levers if other else '',
                'note': row.note, 'file': row.file})
        return lines

    def __str__(self) -> str:
        lines = [{head: text for head, text in line.items()
                  if 'quartile' not in head and head not in HIDDEN}
                 for line in self.table()]
        notes = [f'{row.levers} in {NAMES[row.runtime]}: {row.note.removesuffix(".")}.'
                 for row in self.rows if row.note]
        return '\n'.join([format_table(list(lines[0]), [list(line.values()) for line in lines]),
                          *dict.fromkeys(notes), *self.about, self.recommendation])

    __repr__ = __str__

    def write(self) -> None:
        """Write ``frontier.csv``, ``frontier.md`` and the pictures."""
        lines, table = self.table(), io.StringIO()
        heads, cells = list(lines[0]), [list(line.values()) for line in lines]
        csv.writer(table, lineterminator='\n').writerows([heads, *cells])
        cells = [heads, [':--'] * len(heads), *cells]
        page = ['# What makes this network faster', self.recommendation.replace('\n', '\n\n'),
                '![Time over quality](frontier.png)',
                '\n'.join(f'| {" | ".join(line)} |' for line in cells),
                '\n'.join(f'- {sentence}' for sentence in self.about)]
        for name, text in (('frontier.csv', table.getvalue()),
                           ('frontier.md', '\n\n'.join(page) + '\n')):
            with atomic_write(self.folder / name) as path:
                path.write_text(text, encoding='utf8')
        for name in THEMES:
            with atomic_write(self.folder / name) as path:
                self._draw(name, path)

    def _draw(self, name: str, path: Path) -> None:
        """Draw time over quality, a panel for each runtime and number of threads."""
        from matplotlib import style
        from matplotlib.figure import Figure
        panels = list(dict.fromkeys((row.runtime, row.threads) for row in drop_failed(self.rows)))
        with style.context([THEMES[name], {'axes.spines.top': False, 'axes.spines.right': False}]):
            figure = Figure((8, 4 * len(panels)), layout='constrained')
            axes = figure.subplots(len(panels), sharex=True, sharey=True, squeeze=False)[:, 0]
            for axis, panel in zip(axes, panels):
                self._draw_panel(axis, *panel)
            figure.supylabel(self.quality.heading)
            axes[-1].set_xlabel('time of an image (dense = 1)')
            figure.savefig(path, dpi=120, format='png')

    def _draw_panel(self, axis: Any, runtime: str, threads: int) -> None:
        """Draw the rows of a runtime and threads, those that no other beats joined and numbered."""
        scale = self.quality.scale
        there = [row for row in drop_failed(self.rows)
                 if (row.runtime, row.threads) == (runtime, threads)]
        dense = next(row for row in there if row.levers == 'dense')
        axis.axhline(self.keep * dense.quality * scale, color=BEATEN, linestyle=':', linewidth=1)
        for shown, colour, line in ((there, BEATEN, 'o'), (drop_beaten(there), UNBEATEN, 'o-')):
            axis.plot([row.ratio for row in shown], [row.quality * scale for row in shown],
                      line, color=colour, markersize=5)
        for number, row in enumerate(drop_beaten(there), 1):
            place = row.ratio, row.quality * scale
            axis.plot(*place, ' ', label=f'{number}  {row.levers}')
            # to the upper left of a row that none beats is none
            axis.annotate(number, place, (-3, 3), textcoords='offset points', ha='right')
        axis.legend(loc='upper left', bbox_to_anchor=(1, 1), handlelength=0, frameon=False)
        axis.set_title(f'{NAMES[runtime]}, {threads} thread{"s" * (threads > 1)}')
