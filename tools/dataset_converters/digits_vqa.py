"""Write questions about digit scenes to disk as a VQA set, or leave them if they are there.

Prints what chance gives on the held-out questions.

Example:
    python tools/dataset_converters/digits_vqa.py --out data/digits-vqa
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.data_command import data_options, data_parser
from lab.digit_scenes import Scene, compose_scene, endless
from lab.digit_sources import source_digits, split_sources
from lab.folders import rebuild_folder
from mmkcr.cli.command import Parser, command

STAMP = 'digits-vqa.json'
FILES = r'(train|val)/\d{12}\.png|(train|val)_(questions|annotations)\.json'
#: What can be answered, in the order of the classes.
ANSWERS = ('yes', 'no', *map(str, range(10)))
#: Words of the questions; the digits follow.
WORDS = ('how', 'many', 'digits', 'are', 'there', 'which', 'digit', 'is', 'leftmost', 'a')
STEP = 16  # pixels: side of a digit, and what its place is a multiple of


@dataclass(frozen=True)
class QuestionOptions:
    """What is written.

    Args:
        canvas (int): Height and width of a scene in pixels, 48 or more. Defaults to 48.
        train_scenes (int): Defaults to 4000.
        val_scenes (int): Defaults to 500.
        seed (int): Of split, scenes and questions. Defaults to 0.

    Raises:
        ValueError: An option is out of its range.
    """

    canvas: int = 48
    train_scenes: int = 4000
    val_scenes: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name, smallest in dict(canvas=48, train_scenes=1, val_scenes=1, seed=0).items():
            if getattr(self, name) < smallest:
                raise ValueError(f'expected `{name}` of the questions to be at least {smallest}, '
                                 f'found `{getattr(self, name)}`')


def write_questions(out: str | Path,
                    options: QuestionOptions = QuestionOptions()) -> bool:  # noqa: B008
    """Write the set, unless it is there already; see :func:`~lab.folders.rebuild_folder`.

    Args:
        out (str | Path): The folder to write.
        options (QuestionOptions): What to write. Defaults to ``QuestionOptions()``.

    Returns:
        bool: Whether anything was written.

    Raises:
        FileExistsError: ``out`` holds something that is not of this set.
    """
    return rebuild_folder(
        Path(out), lambda folder: _write_all(folder, options), FILES, STAMP, asdict(options))


def questions_of(scene: Scene, rng: np.random.Generator) -> list[dict[str, str]]:
    """What is asked of a scene.

    Args:
        scene (Scene): With at least one digit.
        rng (np.random.Generator): Of the digit that may be there.

    Returns:
        list[dict]: ``kind``, ``question`` and ``answer``; which digit is leftmost is not asked
        where several are.
    """
    labels = [label for label, _ in scene.instances]
    columns = [int(np.flatnonzero(mask.any(axis=0))[0]) // STEP for _, mask in scene.instances]
    there = sorted(set(labels))
    yes = bool(rng.integers(2))
    asked = rng.choice(there if yes else sorted(set(range(10)) - set(there)))
    found = [('count', 'how many digits are there?', str(len(labels))),
             ('presence', f'is there a {asked}?', 'yes' if yes else 'no')]
    if columns.count(min(columns)) == 1:
        found.append(('leftmost', 'which digit is leftmost?',
                      str(labels[columns.index(min(columns))])))
    return [dict(kind=kind, question=question, answer=answer) for kind, question, answer in found]


def chance(folder: Path, part: str = 'val') -> dict[str, float]:
    """What can be got without a look at images or training, in percent.

    Args:
        folder (Path): The set.
        part (str): ``'train'`` or ``'val'``. Defaults to ``'val'``.

    Returns:
        dict[str, float]: ``answers``: one of all answers, at random; ``kind``: the most frequent
        answer to questions of the kind.
    """
    annotations = json.loads((Path(folder) / f'{part}_annotations.json').read_text())['annotations']
    kinds: dict[str, Counter] = {}
    for entry in annotations:
        kinds.setdefault(entry['question_type'], Counter())[entry['multiple_choice_answer']] += 1
    best = sum(max(counts.values()) for counts in kinds.values())
    return dict(answers=100 / len(ANSWERS), kind=100 * best / len(annotations))


def _write_all(folder: Path, options: QuestionOptions) -> None:
    images, labels = source_digits()
    splits = split_sources(seed=options.seed)
    for number, (part, count) in enumerate((('train', options.train_scenes),
                                            ('val', options.val_scenes))):
        rng = np.random.default_rng([options.seed, number])
        stream = endless(images[splits[part]], labels[splits[part]], rng)
        (folder / part).mkdir()
        asked: list[dict[str, Any]] = []
        for image_id in range(1, count + 1):
            scene = compose_scene(stream, options.canvas, rng, step=STEP, size=STEP)
            Image.fromarray(scene.image).save(folder / part / f'{image_id:012d}.png')
            asked += [dict(entry, image_id=image_id, question_id=10 * image_id + place)
                      for place, entry in enumerate(questions_of(scene, rng))]
        _write_json(folder / f'{part}_questions.json', questions=[
            {key: entry[key] for key in ('image_id', 'question', 'question_id')}
            for entry in asked])
        _write_json(folder / f'{part}_annotations.json', annotations=[
            dict(image_id=entry['image_id'], question_id=entry['question_id'],
                 question_type=entry['kind'], multiple_choice_answer=entry['answer'],
                 answers=[dict(answer=entry['answer'], answer_id=1)]) for entry in asked])


def _write_json(path: Path, **content: Any) -> None:
    path.write_text(json.dumps(content, separators=(',', ':')))


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
