"""Figures of the pages, from docs/results/*.csv.

docs/results/figures.yml says for each file of docs/images/ which rows it shows (``where``), of
which column a panel is (``panels``, one below the other) and a line (``lines``), and which columns
hold the numbers (``x`` and ``y``: the first number of a cell).

Examples:
    python tools/model_zoo/result_figures.py
    python tools/model_zoo/result_figures.py --only real_network_sensitivity.png --out figures
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its neighbour

from model_zoo.result_tables import RESULTS, ROOT, matches, read_results

from lab.figures import saved_figure
from lab.palette import SERIES
from mmkcr.cli.command import Parser, command


def draw(rows: Sequence[Mapping[str, str]], figure: Mapping[str, Any], path: Path) -> None:
    """Write one figure.

    Args:
        rows (Sequence[dict]): Of all CSV files.
        figure (dict): Its definition of figures.yml.
        path (Path): File to write.

    Raises:
        ValueError: No row is found, or a cell without a number.
    """
    found = [row for row in rows if matches(row, figure['where'])]
    if not found:
        raise ValueError(f'expected rows with {figure["where"]} in docs/results, found none')
    names = figure.get('names', {})
    panels = list(dict.fromkeys(row[figure['panels']] for row in found))
    # in the order of their names, the others behind
    lines = sorted(dict.fromkeys(row[figure['lines']] for row in found),
                   key=lambda line: list(names).index(line) if line in names else len(names))
    with saved_figure(path, (4.8, 2.6 * len(panels) + 0.3 * len(lines)), nrows=len(panels),
                      squeeze=False, sharex=True) as (drawn, axes):
        for axis, panel in zip(axes[:, 0], panels):
            for number, line in enumerate(lines):
                points = sorted((_number(row, figure['x']), _number(row, figure['y']))
                                for row in found if row[figure['panels']] == panel
                                and row[figure['lines']] == line)
                axis.plot(*zip(*points), marker='osD^vPX*'[number % 8], markersize=5,
                          color=SERIES[(number + 1) % len(SERIES)], label=names.get(line, line))
            axis.set(ylabel=names.get(panel, panel), **figure.get('axes', {}))
            axis.grid(True)
        axes[-1, 0].set_xlabel(figure['xlabel'])
        handles, labels = axes[0, 0].get_legend_handles_labels()
        drawn.legend(handles, labels, loc='outside lower center')


def _number(row: Mapping[str, str], column: str) -> float:
    digits = re.search(r'\d+(?:\.\d+)?', row[column])
    if digits is None:
        raise ValueError(f'expected a number in `{column}` of a row of `{row["study"]}`, found '
                         f'`{row[column]}`')
    return float(digits[0])


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Draw all figures, or some."""
    figures = yaml.safe_load((RESULTS / 'figures.yml').read_text(encoding='utf8'))
    parser = Parser(__doc__)
    parser.add_argument('--only', nargs='+', choices=figures, default=list(figures),
                        metavar='FILE', help=f'of {", ".join(figures)} (all)')
    parser.add_argument('--out', type=Path, default=ROOT / 'docs' / 'images',
                        help='folder (docs/images)')
    args = parser.parse_args(argv)
    rows = read_results()
    for name in args.only:
        draw(rows, figures[name], args.out / name)
        print(f'Wrote {args.out / name}')


if __name__ == '__main__':
    main()
