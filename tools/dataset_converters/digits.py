"""Write digits and digit scenes to disk, or leave them if they are there.

Example:
    python tools/dataset_converters/digits.py --out data/digits
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.data_command import data_options, data_parser
from lab.digits import DigitsOptions, write_digits
from mmkcr.cli.command import Parser, command


def make_parser() -> Parser:
    """The command line: every field of :class:`DigitsOptions` is an option."""
    return data_parser(__doc__, DigitsOptions, 'data/digits')


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Write the data and say what happened."""
    out, options = data_options(make_parser().parse_args(argv), DigitsOptions)
    written = write_digits(out, options)
    print(f'digits: wrote {out}' if written else
          f'digits: {out} is complete, nothing to do')


if __name__ == '__main__':
    main()
