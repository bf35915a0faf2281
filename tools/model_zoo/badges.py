"""Write the badges of README.md as files: version, Python, licence. No host is asked for them.

With --check nothing is written, and the exit status is 1 if a badge is not up to date.

Example:
    python tools/model_zoo/badges.py --check
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.palette import SLIM
from mmkcr.cli.command import Parser, command
from mmkcr.core.io import atomic_write
from mmkcr.version import __version__

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / 'docs' / 'images' / 'badges'
_SVG = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" \
aria-label="{name}: {value}">
<rect width="{left}" height="20" fill="#555"/>
<rect x="{left}" width="{right}" height="20" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{middle}" y="14">{name}</text>
<text x="{end}" y="14">{value}</text>
</g>
</svg>
"""


def badge(name: str, value: str) -> str:
    """A badge as SVG."""
    left, right = (7 * len(text) + 12 for text in (name, value))
    return _SVG.format(name=name, value=value, left=left, right=right, width=left + right,
                       middle=left / 2, end=left + right / 2, colour=SLIM)


def badges() -> dict[str, str]:
    """SVG by the badge's name: what setup.py and the version say."""
    setup = (ROOT / 'setup.py').read_text()
    python = re.search(r"python_requires='>=([\d.]+)'", setup)[1]
    licence = re.search(r"license='([^']+)'", setup)[1]
    return dict(version=badge('version', __version__), python=badge('python', f'{python}+'),
                licence=badge('licence', licence))


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Write or check."""
    parser = Parser(__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing, compare')
    parser.add_argument('--out', type=Path, default=FOLDER, metavar='DIR',
                        help='folder (docs/images/badges)')
    args = parser.parse_args(argv)
    stale = []
    for name, text in badges().items():
        path = args.out / f'{name}.svg'
        if not path.is_file() or path.read_text() != text:
            stale.append(name)
            if not args.check:
                args.out.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as temporary:
                    temporary.write_text(text)
    print(f'{"stale" if args.check else "written"}: {", ".join(stale) or "none"}')
    sys.exit(1 if args.check and stale else 0)


if __name__ == '__main__':
    main()
