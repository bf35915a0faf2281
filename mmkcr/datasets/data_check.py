"""Checks before a run that its data is on disk."""

import inspect
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
        loaders (Sequence[str]): Keys of the data loaders to check, if they are there. Defaults to
            those of training, validation and test.

    Raises:
        FileNotFoundError: A folder or an annotation file is missing; for digits the message
            gives the command that writes them.
        ValueError: A COCO file has no categories, or questions have no answers.
    """
    for loader in loaders:
        for dataset in _dataset_configs((cfg.get(loader) or {}).get('dataset')):
            if not _is_elsewhere(dataset):
                _check_folders(dataset, loader)
                _check_coco_file(dataset, loader)
                _check_answers(dataset, loader)


def _dataset_configs(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the config of a data set and those of all data sets that it wraps."""
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from _dataset_configs(child)
    elif isinstance(node, Mapping):
        yield node
        for key in ('dataset', 'datasets'):
            yield from _dataset_configs(node.get(key))


def pipeline_config(node: Any) -> list[Mapping[str, Any]]:
    """The transforms in a data set's config, also inside its wrappers; empty if there are none."""
    return next((list(dataset['pipeline']) for dataset in _dataset_configs(node)
                 if dataset.get('pipeline')), [])


def _is_elsewhere(dataset: Mapping[str, Any]) -> bool:
    """Whether a store holds the files, also where a backend maps paths that look local to it."""
    paths = [str(dataset.get(key)) for key in ('data_root', 'question_file', 'ann_file')]
    backend = (dataset.get('backend_args') or {}).get('backend', 'local')
    return '://' in ''.join(paths) or backend not in ('local', 'disk')


def _check_folders(dataset: Mapping[str, Any], loader: str) -> None:
    root = dataset.get('data_root')
    if not isinstance(root, str) or _downloads(dataset):
        return
    for folder in (Path(root).expanduser() / below for below in ('', *_folders_below(dataset))):
        if not folder.is_dir():
            raise FileNotFoundError(f'expected the data of `{loader}` in the folder `{folder}`, '
                                    f'found no such folder{_remedy(folder)}')


def _file(dataset: Mapping[str, Any], key: str, what: str) -> Path:
    path = Path(dataset.get('data_root') or '').expanduser() / (dataset.get(key) or '')
    if not path.is_file():
        raise FileNotFoundError(f'expected {what} at `{path}`, found no such file'
                                f'{_remedy(path.parent)}')
    return path


def _check_coco_file(dataset: Mapping[str, Any], loader: str) -> None:
    """Refuse annotations without categories, without parsing hundreds of megabytes."""
    kind = str(dataset.get('type'))
    if 'Coco' not in kind or 'Caption' in kind or not isinstance(dataset.get('ann_file'), str):
        return
    path = _file(dataset, 'ann_file', f'the annotations of `{loader}`')
    if not any(_matches(_CATEGORIES, path)):
        raise ValueError(f'expected `categories` in the COCO annotations of `{loader}`, found none '
                         f'in `{path}`')


def _check_answers(dataset: Mapping[str, Any], loader: str) -> None:
    """Refuse questions of VQAv2's format without answers, by counting both.

    Those of the test set need none.
    """
    given = dataset.get('ann_file')
    if 'COCOVQA' not in str(dataset.get('type')) or loader == 'test_dataloader' and not given:
        return
    questions = _file(dataset, 'question_file', f'a file of `{loader}`')
    if not given:
        raise ValueError(f'expected answers (`ann_file`) to the questions of `{loader}`, found '
                         f'none beside `{questions}`')
    answers = _file(dataset, 'ann_file', f'a file of `{loader}`')
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


def _class_of(node: Mapping[str, Any]) -> type:
    """The class of a data set's config; ``object`` if it is unknown, as of mmdet's sets."""
    cls = node.get('type')
    cls = DATASETS.get(cls) if isinstance(cls, str) else cls
    return cls if isinstance(cls, type) else object


def _downloads(node: Mapping[str, Any]) -> bool:
    """Whether a data set fetches what is missing, as the host's CIFAR and MNIST do."""
    argument = inspect.signature(_class_of(node)).parameters.get('download')
    return argument is not None and bool(node.get('download', argument.default))


def _folders_below(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield the folders below its root that a data set needs."""
    prefix = node.get('data_prefix') or ()
    # elsewhere a split is a list of files, as in Flowers-102
    if not prefix and issubclass(_class_of(node), CustomDataset):
        prefix = node.get('split') or ()
    prefixes = [prefix] if isinstance(prefix, str) else list(dict(prefix).values())
    for name in prefixes:
        if isinstance(name, str) and '://' not in name:
            yield name


def _remedy(folder: Path) -> str:
    root = next((path for path in (folder, *folder.parents) if path.name in COMMANDS), None)
    return f'; make it with `{COMMANDS[root.name]} {root}`' if root else ''
