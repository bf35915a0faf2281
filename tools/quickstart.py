"""KCR-Transformer on real digits, start to end, in minutes on two cores.

A study (tools/study.py) of a small ViT and a small Swin: train the dense model; compress it in
closed form; search channels; slim to 80 % of the MACs; retrain from the inherited weights, without
and with the KCR term; evaluate. Search and retraining together have as many epochs as the dense
model. Prints a table.

A second call reuses what is finished, and goes on where one was stopped.

Examples:
    python tools/quickstart.py --work-dir work_dirs/quickstart
    python tools/quickstart.py --work-dir work_dirs/quickstart --seeds 0 1 2
"""

from collections.abc import Sequence
from pathlib import Path

from study import make_parser as study_parser
from study import run

from mmkcr.cli.command import Parser, command

STUDY = Path(__file__).resolve().parents[1] / 'configs/kcr/digits/kcr-study_quickstart_digits.yml'


def make_parser() -> Parser:
    """The command line."""
    return study_parser(__doc__, str(STUDY), 'work_dirs/quickstart')


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run the study."""
    run(make_parser().parse_args(argv))


if __name__ == '__main__':
    main()
