"""Checks before a run that its data is on disk."""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmpretrain.datasets import CustomDataset
from mmpretrain.registry import DATASETS

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
#: Commands that create a folder of that name.
COMMANDS = {'digits': 'python tools/dataset_converters/digits.py --out',
            'digits-vqa': 'python tools/dataset_converters/digits_vqa.py --out'}


def check_data_folders(cfg: Mapping[str, Any], loaders: Sequence[str] = LOADERS) -> None:
    """Refuse a config whose data are missing, wrapped data sets included.

    It checks ``data_root``, the folders below it that ``data_prefix`` names, or ``split`` of a
    set of folders such as ImageNet, and files of annotations and questions of COCO's formats.
    Roots with a protocol, such as ``s3://``, are left to their backends, and sets that download
    themselves to the host.

    Args:
        cfg (Mapping): Config of a run.
        loaders (Sequence[str]): Keys of the data loaders to check; a missing or empty one is
            skipped. Defaults to those of training, validation and test.

    Raises:
        FileNotFoundError: A folder or a file is missing; for digits the message gives the command
            that writes them.
    """
    for loader in loaders:
        for dataset in _dataset_configs((cfg.get(loader) or {}).get('dataset')):
            # another backend maps paths that look local to a store
            backend = (dataset.get('backend_args') or {}).get('backend', 'local')
            if backend in ('local', 'disk') and '://' not in str(dataset.get('data_root')):
                for what, path in _needed(dataset):
                    if not path.exists():
                        raise FileNotFoundError(f'expected {what} of `{loader}` at `{path}`, found '
                                                f'no such file or folder{_remedy(path)}')


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
    """The transforms in a data set's config, also inside its wrappers; empty if there are none.

    Args:
        node (Mapping, optional): ``dataset`` of a data loader.
    """
    return next((list(dataset['pipeline']) for dataset in _dataset_configs(node)
                 if dataset.get('pipeline')), [])


def _needed(dataset: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    """Folders and files of a data set, and what they are."""
    root, kind = dataset.get('data_root'), str(dataset.get('type'))
    folder = Path(root or '').expanduser()
    if isinstance(root, str) and not _downloads(dataset):
        for below in ('', *_folders_below(dataset)):
            yield 'the data', folder / below
    if 'Coco' in kind and 'Caption' not in kind or 'COCOVQA' in kind:
        for key in ('question_file', 'ann_file'):
            file = dataset.get(key)
            if isinstance(file, str) and file and '://' not in file:
                yield f'`{key}`', folder / file


def _class_of(node: Mapping[str, Any]) -> type:
    """The class of a data set's config; ``object`` if it is unknown, as of mmdet's sets."""
    found = node.get('type')
    found = DATASETS.get(found) if isinstance(found, str) else found
    return found if isinstance(found, type) else object


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
