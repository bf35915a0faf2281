"""Write questions about digit scenes to disk as a VQA set, or leave them if they are there.

Prints what chance gives on the held-out questions.

Example:
    python tools/dataset_converters/digits_vqa.py --out data/digits-vqa
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.data_command import data_options, data_parser
from lab.digit_questions import QuestionOptions, chance, write_questions
from mmkcr.cli.command import Parser, command


def make_parser() -> Parser:
    """The command line: every field of :class:`QuestionOptions` is an option."""
    return data_parser(__doc__, QuestionOptions, 'data/digits-vqa')


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Write the data and say what happened."""
    out, options = data_options(make_parser().parse_args(argv), QuestionOptions)
    written = write_questions(out, options)
    print(f'digits-vqa: wrote {out}' if written else
          f'digits-vqa: {out} is complete, nothing to do')
    found = chance(out)
    print(f'chance: {found["answers"]:.1f} % with any answer, {found["kind"]:.1f} % with the most '
          'frequent one to each kind of question')


if __name__ == '__main__':
    main()
