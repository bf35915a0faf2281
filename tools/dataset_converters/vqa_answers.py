"""Write the most frequent answers of a VQAv2 annotation file: the classes of a model.

Counted is what most people answered to each question, as ``multiple_choice_answer`` says.

Example:
    python tools/dataset_converters/vqa_answers.py \
        data/coco/annotations/v2_mscoco_train2014_annotations.json \
        --out data/coco/annotations/vqa_answers.json
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from mmkcr.cli.command import Parser, command
from mmkcr.core import atomic_write
from mmkcr.core.checks import check_place


def frequent_answers(path: Path, count: int) -> list[str]:
    """The most frequent answers, alphabetically where they are as frequent.

    Args:
        path (Path): Annotations of VQAv2.
        count (int): Answers at most.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It holds no answers, or fewer than one is asked for.
    """
    if not path.is_file():
        raise FileNotFoundError(f'expected annotations of VQAv2 at `{path}`, found no such file')
    if count < 1:
        raise ValueError(f'expected `--count` of at least 1, found {count}')
    try:
        entries = json.loads(path.read_text())['annotations']
        found = Counter(entry['multiple_choice_answer'] for entry in entries)
    except (ValueError, TypeError, KeyError, RecursionError):
        found = Counter()
    if not found:
        raise ValueError('expected `annotations` with a `multiple_choice_answer` each, found none '
                         f'in `{path}`')
    return sorted(found, key=lambda answer: (-found[answer], answer))[:count]


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Count and write."""
    parser = Parser(__doc__)
    parser.add_argument('annotations', help='of the training set')
    parser.add_argument('--out', required=True, metavar='FILE', help='JSON file to write')
    parser.add_argument('--count', type=int, default=3129, help='answers at most (%(default)s)')
    args = parser.parse_args(argv)
    check_place(args.out, '--out', file=True)
    answers = frequent_answers(Path(args.annotations), args.count)
    with atomic_write(args.out) as path:
        path.write_text(json.dumps(answers))
    print(f'{len(answers)} answers: {args.out}')


if __name__ == '__main__':
    main()
