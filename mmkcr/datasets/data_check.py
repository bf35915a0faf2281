"""Checks before a run that its data is on disk."""

import inspect
import mmap
import re
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple

from mmpretrain.datasets import CustomDataset
from mmpretrain.registry import DATASETS

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
_CATEGORIES = re.compile(rb'"categories"\s*:\s*\[\s*[^\s\]]')
_QUESTION = re.compile(rb'"question_id"\s*:')
_ANSWERED = re.compile(rb'"answers"\s*:\s*\[\s*[^\s\]]')
#: Commands that create a folder of that name.
COMMANDS = {'digits': 'python tools/dataset_converters/digits.py --out',
            'digits-vqa': 'python tools/dataset_converters/digits_vqa.py --out'}


def check_data_folders(cfg: Mapping[str, Any], loaders: Sequence[str] = LOADERS) -> None:
    """Refuse a config whose data are missing, wrapped data sets included.

    It checks ``data_root``, the folders below it that ``data_prefix`` names, or ``split`` of a
    set of folders such as ImageNet, COCO annotation files, which must have categories, and
    questions, which must have answers except in the test set. Roots with a protocol, such as
    ``s3://``, are left to their backends, and sets that download themselves to the host.

    Args:
        cfg (Mapping): Config of a run.
        loaders (Sequence[str]): Keys of the data loaders to check; a missing or empty one is
            skipped. Defaults to those of training, validation and test.

    Raises:
        FileNotFoundError: A folder or an annotation file is missing; for digits the message
            gives the command that writes them.
        ValueError: A COCO file has no categories, or questions have no answers.
    """
    for loader in loaders:
        for folder in _needed_folders((cfg.get(loader) or {}).get('dataset')):
            if not folder.is_dir():
                raise FileNotFoundError(f'expected the data of `{loader}` in the folder '
                                        f'`{folder}`, found no such folder{_remedy(folder)}')
        for file in _coco_files((cfg.get(loader) or {}).get('dataset')):
            check_coco_file(file, loader)
        for questions, answers in _question_files((cfg.get(loader) or {}).get('dataset')):
            if answers is not None or loader != 'test_dataloader':
                check_answers(questions, answers, loader)


def check_answers(questions: Path, answers: Optional[Path], loader: str) -> None:
    """Refuse questions of VQAv2's format without answers, by counting both.

    Args:
        questions (Path): File of the questions.
        answers (Path, optional): File of the answers.
        loader (str): Key of the data loader, for the message.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Some of the questions have no answer.
    """
    if answers is None:
        raise ValueError(f'expected answers (`ann_file`) to the questions of `{loader}`, found '
                         f'none beside `{questions}`')
    for path in (questions, answers):
        if not path.is_file():
            raise FileNotFoundError(f'expected a file of `{loader}` at `{path}`, found no such '
                                    f'file{_remedy(path.parent)}')
    asked, answered = (sum(1 for _ in _matches(pattern, path)) for pattern, path in (
        (_QUESTION, questions), (_ANSWERED, answers)))
    if not asked or asked != answered:
        raise ValueError(f'expected answers to the {asked} questions of `{loader}`, found those to '
                         f'{answered} in `{answers}`')


def _matches(pattern: 're.Pattern[bytes]', path: Path) -> Iterator[int]:
    """Yield the end of every match of a pattern in a file, without reading it as a whole."""
    if path.stat().st_size:
        with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            for match in pattern.finditer(text):
                yield match.end()


def _question_files(node: Any) -> Iterator[Tuple[Path, Optional[Path]]]:
    """Yield files of questions and answers of the VQAv2 sets inside a data set's config."""
    for child in _nodes(node):
        root, questions, answers = (
            str(child.get(key) or '') for key in ('data_root', 'question_file', 'ann_file'))
        if 'COCOVQA' in str(child.get('type')) and '://' not in root + questions + answers:
            folder = Path(root).expanduser()
            yield folder / questions, folder / answers if answers else None


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the configs of a data set and of all data sets that it wraps."""
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from _nodes(child)
    elif isinstance(node, Mapping):
        yield node
        for key in ('dataset', 'datasets'):
            yield from _nodes(node.get(key))


def check_coco_file(path: Path, loader: str) -> None:
    """Refuse annotations without categories, without parsing hundreds of megabytes.

    Args:
        path (Path): COCO json.
        loader (str): Key of the data loader, for the message.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It has no or empty ``categories``.
    """
    if not path.is_file():
        raise FileNotFoundError(f'expected the annotations of `{loader}` at `{path}`, found no '
                                f'such file{_remedy(path.parent)}')
    if not any(_matches(_CATEGORIES, path)):
        raise ValueError(f'expected `categories` in the COCO annotations of `{loader}`, found none '
                         f'in `{path}`')


def _coco_files(node: Any) -> Iterator[Path]:
    """Yield the annotation files of all the COCO data sets inside a data set's config."""
    for child in _nodes(node):
        file, root = child.get('ann_file'), str(child.get('data_root') or '')
        if 'Coco' in str(child.get('type')) and isinstance(file, str) and \
                '://' not in root + file:
            yield Path(root).expanduser() / file


def _needed_folders(node: Any) -> Iterator[Path]:
    """Yield the folders of all the data sets inside a data set's config."""
    for child in _nodes(node):
        root = child.get('data_root')
        if isinstance(root, str) and '://' not in root and not _downloads(child):
            yield Path(root).expanduser()
            yield from _folders_below(Path(root).expanduser(), child)


def _class_of(node: Mapping[str, Any]) -> type:
    """The class of a data set's config; ``object`` if it is unknown, as of mmdet's sets."""
    found = node.get('type')
    found = DATASETS.get(found) if isinstance(found, str) else found
    return found if isinstance(found, type) else object


def _downloads(node: Mapping[str, Any]) -> bool:
    """Whether a data set fetches what is missing, as the host's CIFAR and MNIST do."""
    argument = inspect.signature(_class_of(node)).parameters.get('download')
    return argument is not None and bool(node.get('download', argument.default))


def _folders_below(root: Path, node: Mapping[str, Any]) -> Iterator[Path]:
    prefix = node.get('data_prefix') or ()
    # elsewhere a split is a list of files, as in Flowers-102
    if not prefix and issubclass(_class_of(node), CustomDataset):
        prefix = node.get('split') or ()
    prefixes = [prefix] if isinstance(prefix, str) else list(dict(prefix).values())
    for name in prefixes:
        if isinstance(name, str) and '://' not in name:
            yield root / name


def _remedy(folder: Path) -> str:
    root = next((path for path in (folder, *folder.parents) if path.name in COMMANDS), None)
    return f'; make it with `{COMMANDS[root.name]} {root}`' if root else ''
