"""Write digits and digit scenes to disk, or leave them if they are there.

Example:
    python tools/dataset_converters/digits.py --out data/digits
"""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.digits import DigitsOptions, write_digits
from mmkcr.apis.cli import Parser, command


def make_parser() -> Parser:
    """The command line: every field of :class:`DigitsOptions` is an option."""
    parser = Parser(__doc__)
    parser.add_argument('--out', default='data/digits', metavar='DIR',
                        help='folder to write (%(default)s)')
    for field in fields(DigitsOptions):
        parser.add_argument('--' + field.name.replace('_', '-'), type=field.type,
                            default=field.default, help='see DigitsOptions (%(default)s)')
    return parser


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Write the data and say what happened."""
    args = make_parser().parse_args(argv)
    options = DigitsOptions(**{field.name: getattr(args, field.name)
                               for field in fields(DigitsOptions)})
    written = write_digits(args.out, options)
    print(f'digits: wrote {args.out}' if written else
          f'digits: {args.out} is complete, nothing to do')


if __name__ == '__main__':
    main()
