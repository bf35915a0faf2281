"""Write digits and digit scenes to disk, or leave them if they are there.

Example:
    python tools/dataset_converters/digits.py --out data/digits
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.digits import DigitsOptions, write_digits


def parse_args() -> argparse.Namespace:
    """Parse the command line: every field of :class:`DigitsOptions` is an option."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', default='data/digits', help='folder to write (%(default)s)')
    for field in fields(DigitsOptions):
        parser.add_argument('--' + field.name.replace('_', '-'), type=field.type,
                            default=field.default, help='see DigitsOptions (%(default)s)')
    return parser.parse_args()


def main() -> None:
    """Write the data and say what happened."""
    args = vars(parse_args())
    out = args.pop('out')
    try:
        written = write_digits(out, DigitsOptions(**args))
    except (ValueError, FileExistsError) as error:
        sys.exit(f'digits: {error}')
    print(f'digits: wrote {out}' if written else f'digits: {out} is complete, nothing to do')


if __name__ == '__main__':
    main()
