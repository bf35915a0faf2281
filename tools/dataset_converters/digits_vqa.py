"""Write questions about digit scenes to disk as a VQA set, or leave them if they are there.

Prints what chance gives on the held-out questions.

Example:
    python tools/dataset_converters/digits_vqa.py --out data/digits-vqa
"""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.digit_questions import QuestionOptions, chance, write_questions
from mmkcr.apis.cli import Parser, command


def make_parser() -> Parser:
    """The command line: every field of :class:`QuestionOptions` is an option."""
    parser = Parser(__doc__)
    parser.add_argument('--out', default='data/digits-vqa', metavar='DIR',
                        help='folder to write (%(default)s)')
    for field in fields(QuestionOptions):
        parser.add_argument('--' + field.name.replace('_', '-'), type=field.type,
                            default=field.default, help='see QuestionOptions (%(default)s)')
    return parser


@command
def main(argv: Optional[Sequence[str]] = None) -> None:
    """Write the data and say what happened."""
    args = make_parser().parse_args(argv)
    options = QuestionOptions(**{field.name: getattr(args, field.name)
                                 for field in fields(QuestionOptions)})
    written = write_questions(args.out, options)
    print(f'digits-vqa: wrote {args.out}' if written else
          f'digits-vqa: {args.out} is complete, nothing to do')
    found = chance(args.out)
    print(f'chance: {found["answers"]:.1f} % with any answer, {found["kind"]:.1f} % with the most '
          'frequent one to each kind of question')


if __name__ == '__main__':
    main()
