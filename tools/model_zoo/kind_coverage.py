"""The table of backbones and kinds of site in docs/coverage.md.

Every cell is tried on a small network in double precision: the supernet with hard gates, the
sliced subnet and the reloaded subnet give the same outputs, which are not those of the dense
network. Rows of libraries that are not installed are left as they are. With --check nothing is
written, and the exit status is 1 if the table is not up to date.

Example:
    python tools/model_zoo/kind_coverage.py --check
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.kind_coverage import FAMILIES, KINDS, cell, format_cells, installed, read_cells
from mmkcr.cli.command import Parser, command, quiet_hosts
from mmkcr.core.io import atomic_write
from mmkcr.hosts import prepare_hosts

PATH = Path(__file__).resolve().parents[2] / 'docs' / 'coverage.md'
_TABLE = re.compile(r'(<!-- table -->\n)(.*)(<!-- /table -->)', re.DOTALL)


def render(text: str) -> str:
    """The document with the table as it is today.

    Args:
        text (str): The document, with a place for the table.

    Raises:
        ValueError: There is no such place, or a library is missing whose rows are not there yet.
    """
    place = _TABLE.search(text)
    if place is None:
        raise ValueError('expected the comments `<!-- table -->` and `<!-- /table -->` around the '
                         'table, found a document without')
    before, cells = read_cells(place[2]), {}
    for name, family in FAMILIES.items():
        if installed(name):
            cells[name] = {kind: cell(name, kind) for kind in KINDS}
        elif name in before:
            cells[name] = before[name]
        else:
            raise ValueError(f'expected `{family.library}` for the row `{name}`, found it neither '
                             'installed nor in the document')
    return f'{text[:place.start(2)]}\n{format_cells(cells)}\n{text[place.end(2):]}'


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Write or check the table."""
    parser = Parser(__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing, compare')
    parser.add_argument('--path', type=Path, default=PATH, help='the document (docs/coverage.md)')
    args = parser.parse_args(argv)
    quiet_hosts()
    prepare_hosts()
    text = args.path.read_text()
    found = render(text)
    if found != text and not args.check:
        with atomic_write(args.path) as temporary:
            temporary.write_text(found)
    print(f'{"up to date" if found == text else "stale" if args.check else "written"}: '
          f'{args.path}')
    sys.exit(1 if args.check and found != text else 0)


if __name__ == '__main__':
    main()
