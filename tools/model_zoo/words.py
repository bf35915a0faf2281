"""Words of the pages, against the limits of each.

A word is what ``wc -w`` takes for one. README counts whole. Of the other pages generated tables
(between ``<!-- results: ... -->`` or ``<!-- table ... -->`` and their end) and blocks of code are
left out; tables that are written by hand count. The exit status is 1 if a page, the site or the
READMEs of the methods are longer than their limit.

Examples:
    python tools/model_zoo/words.py
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mmkcr.cli.command import Parser, command

ROOT = Path(__file__).resolve().parents[2]
#: Of a page of the site, and of those that are mathematics.
PAGE, MATHEMATICS = 1500, 2500
LIMITS = {'README.md': 800, 'the site': 22000, 'READMEs of the methods': 4000}
_MATHEMATICS = {'docs/refit.md', 'docs/dcs.md', 'docs/kernel_complexity.md'}
_GENERATED = re.compile(r'<!-- (results|table)\b.*?<!-- /\1 -->', re.DOTALL)
_CODE = re.compile(r'^( *)```.*?^\1```$', re.DOTALL | re.MULTILINE)


def words(text: str) -> int:
    """Words of a page, without generated tables and code."""
    return len(_CODE.sub('', _GENERATED.sub('', text)).split())


def count(root: Path = ROOT) -> dict[str, tuple[int, int]]:
    """Words and limit of README, of every page and of their sums, by name."""
    site, methods = (sorted(root.glob(pattern)) for pattern in ('docs/**/*.md',
                                                                'configs/*/README.md'))
    read = {path: words(path.read_text(encoding='utf8'))
            for path in (*site, *methods)}
    readme = (root / 'README.md').read_text(encoding='utf8')
    found = {'README.md': (len(readme.split()), LIMITS['README.md'])}
    for path in (*site, *methods):
        name = path.relative_to(root).as_posix()
        found[name] = read[path], MATHEMATICS if name in _MATHEMATICS else PAGE
    return found | {name: (sum(read[path] for path in paths), LIMITS[name])
                    for name, paths in (('the site', site), ('READMEs of the methods', methods))}


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Print the words of every page."""
    Parser(__doc__).parse_args(argv)
    found = count()
    for name, (number, limit) in found.items():
        print(f'{number:6} of {limit:6}  {name}{"  too long" if number > limit else ""}')
    sys.exit(int(any(number > limit for number, limit in found.values())))


if __name__ == '__main__':
    main()
