"""Finds out before a run whether its data is on disk."""

import mmap
import re
from pathlib import Path
from typing import Any, Iterator, Mapping, Optional, Sequence

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
_CATEGORIES = re.compile(rb'"categories"\s*:\s*\[\s*[^\s\]]')
DIGITS_COMMAND = 'python tools/dataset_converters/digits.py --out'


def check_data_folders(cfg: Mapping[str, Any], loaders: Sequence[str] = LOADERS) -> None:
    """Refuse a config whose data are missing, wrapped data sets included.

    Looks at ``data_root``, at the folders below it that ``split`` and ``data_prefix`` name, and
    at COCO's annotation files, which must have categories. Roots with a protocol, as ``s3://``,
    are left to their backends.

    Args:
        cfg (Mapping): Config of a run.
        loaders (Sequence[str]): Keys of the data loaders to look at; a missing or empty one is
            passed over. Defaults to those of training, validation and test.

    Raises:
        FileNotFoundError: A folder or an annotation file is missing; for digits the message
            gives the command that writes them.
        ValueError: A COCO file has no categories.
    """
    for loader in loaders:
        for folder in _needed_folders((cfg.get(loader) or {}).get('dataset')):
            if not folder.is_dir():
                raise FileNotFoundError(f'expected the data of `{loader}` in the folder '
                                        f'`{folder}`, found no such folder{_remedy(folder)}')
        for file in _coco_files((cfg.get(loader) or {}).get('dataset')):
            check_coco_file(file, loader)


def check_coco_file(path: Path, loader: str) -> None:
    """Refuse annotations without categories, without parsing what may be hundreds of megabytes.

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
    found = False
    if path.stat().st_size:
        with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            found = _CATEGORIES.search(text) is not None
    if not found:
        raise ValueError(f'expected `categories` in the COCO annotations of `{loader}`, found none '
                         f'in `{path}`')


def _coco_files(node: Any) -> Iterator[Path]:
    """Yield the annotation files of all the COCO data sets inside a data set's config."""
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from _coco_files(child)
    elif isinstance(node, Mapping):
        file, root = node.get('ann_file'), str(node.get('data_root') or '')
        if 'Coco' in str(node.get('type')) and isinstance(file, str) and '://' not in root + file:
            yield Path(root).expanduser() / file
        for key in ('dataset', 'datasets'):
            yield from _coco_files(node.get(key))


def _needed_folders(node: Any) -> Iterator[Path]:
    """Yield the folders of all the data sets inside a data set's config."""
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from _needed_folders(child)
    elif isinstance(node, Mapping):
        root = node.get('data_root')
        if isinstance(root, str) and '://' not in root:
            yield Path(root).expanduser()
            yield from _folders_below(Path(root).expanduser(), node)
        for key in ('dataset', 'datasets'):
            yield from _needed_folders(node.get(key))


def _folders_below(root: Path, node: Mapping[str, Any]) -> Iterator[Path]:
    prefix = node.get('data_prefix') or node.get('split') or ()
    prefixes = [prefix] if isinstance(prefix, str) else list(dict(prefix).values())
    for name in prefixes:
        if isinstance(name, str) and '://' not in name:
            yield root / name


def _remedy(folder: Path) -> str:
    root = _digits_root(folder)
    return f'; make it with `{DIGITS_COMMAND} {root}`' if root else ''


def _digits_root(folder: Path) -> Optional[Path]:
    """The innermost part of the path that is called ``digits``, if there is one."""
    return next((path for path in (folder, *folder.parents) if path.name == 'digits'), None)
