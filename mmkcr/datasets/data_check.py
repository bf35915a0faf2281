"""Checks of data: before a run that it is on disk, and of masks as they are loaded."""

import inspect
import mmap
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmpretrain.registry import DATASETS

from mmkcr.registry import TRANSFORMS
from .part import inner_sets

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
_CATEGORIES = re.compile(rb'"categories"\s*:\s*\[\s*[^\s\]]')
_QUESTION = re.compile(rb'"question_id"\s*:')
_ANSWERED = re.compile(rb'"answers"\s*:\s*\[\s*[^\s\]]')
#: Commands that create a folder of that name.
MAKERS = {'digits': 'python tools/dataset_converters/digits.py --out',
          'digits-vqa': 'python tools/dataset_converters/digits_vqa.py --out'}


def check_data_folders(cfg: Mapping[str, Any], loaders: Sequence[str] = LOADERS) -> None:
    """Refuse a config whose data are missing, wrapped data sets included, in the named loaders.

    It checks ``data_root``, the folders below it that ``data_prefix`` names, or ``split`` of a set
    of folders such as ImageNet, COCO annotation files, which must have categories, and questions,
    which must have answers except in the test set. Roots with a protocol, such as ``s3://``, are
    left to their backends, and sets that download themselves to the host. For digits the message
    gives the command that writes them.
    """
    for loader in loaders:
        for dataset in _dataset_configs((cfg.get(loader) or {}).get('dataset')):
            if not _is_elsewhere(dataset):
                _check_folders(dataset, loader)
                _check_annotations(dataset, loader)


def _dataset_configs(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the configs of a data set and of all data sets that it wraps."""
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
    root, cls = dataset.get('data_root'), dataset.get('type')
    cls = DATASETS.get(cls) if isinstance(cls, str) else cls
    cls = cls if isinstance(cls, type) else object  # unknown, as mmdet's sets are here
    # the host's CIFAR and MNIST fetch what is missing
    download = inspect.signature(cls).parameters.get('download')
    if not isinstance(root, str) or download and dataset.get('download', download.default):
        return
    prefix = dataset.get('data_prefix') or ()
    # elsewhere a split is a list of files, as in Flowers-102
    of_folders = issubclass(cls, DATASETS.get('CustomDataset'))
    if not prefix and of_folders:
        prefix = dataset.get('split') or ()
    for name in ('', *([prefix] if isinstance(prefix, str) else dict(prefix).values())):
        folder = Path(root).expanduser() / str(name)
        if isinstance(name, str) and '://' not in name and not folder.is_dir():
            raise FileNotFoundError(f'expected the data of `{loader}` in the folder `{folder}`, '
                                    f'found no such folder{_remedy(folder)}')
    if of_folders and isinstance(prefix, str) and not _is_listed(dataset):
        _check_classes(Path(root).expanduser() / prefix, loader)


def _is_listed(dataset: Mapping[str, Any]) -> bool:
    """Whether a file, and no folders, gives the labels of an mmpretrain data set, or none does."""
    split = dataset.get('split')
    listed = Path(dataset['data_root']).expanduser() / 'meta' / f'{split}.txt'
    return bool(dataset.get('ann_file')) or not dataset.get('with_label', True) or \
        split == 'test' or bool(split) and listed.is_file()


def _check_classes(folder: Path, loader: str) -> None:
    """Refuse a folder of images without a folder for each class, as archives of ImageNet are."""
    if not any(path.is_dir() for path in folder.iterdir()):
        raise FileNotFoundError(f'expected a folder for each class of `{loader}` in `{folder}`, '
                                'such as `n01440764`, found none: move the images of each class '
                                'into its folder, or list them in an `ann_file`')


def _file(dataset: Mapping[str, Any], key: str, what: str) -> Path:
    path = Path(dataset.get('data_root') or '').expanduser() / (dataset.get(key) or '')
    if not path.is_file():
        raise FileNotFoundError(f'expected {what} at `{path}`, found no such file'
                                f'{_remedy(path.parent)}')
    return path


def _check_annotations(dataset: Mapping[str, Any], loader: str) -> None:
    """Refuse COCO's without categories, and questions of VQAv2's format without answers.

    Files have hundreds of megabytes and are not parsed. Questions of the test set need no answers.
    """
    kind, given = str(dataset.get('type')), dataset.get('ann_file')
    if 'Coco' in kind and 'Caption' not in kind and isinstance(given, str):
        path = _file(dataset, 'ann_file', f'the annotations of `{loader}`')
        if not any(_matches(_CATEGORIES, path)):
            raise ValueError(f'expected `categories` in the COCO annotations of `{loader}`, found '
                             f'none in `{path}`')
    if 'COCOVQA' not in kind or loader == 'test_dataloader' and not given:
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


def _remedy(folder: Path) -> str:
    root = next((path for path in (folder, *folder.parents) if path.name in MAKERS), None)
    return f'; make it with `{MAKERS[root.name]} {root}`' if root else ''


@TRANSFORMS.register_module()
class CheckSegLabels:
    """Checks the labels of a packed sample of semantic segmentation; others pass.

    Unchecked, a label out of range is a device assertion without a name in the middle of a loss,
    and a metric ignores it. :class:`mmkcr.ClassCheckHook` appends this to a run's transforms.

    Args:
        num_classes (int): Labels are 0 to ``num_classes - 1``.
        ignore_index (int): The only other permitted label. Defaults to 255.
    """

    def __init__(self, num_classes: int, ignore_index: int = 255) -> None:
        self.num_classes, self.ignore_index = num_classes, ignore_index

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        """Check a sample; errors name the mask."""
        sample = results.get('data_samples')
        if hasattr(sample, 'gt_sem_seg'):
            labels = sample.gt_sem_seg.data
            wrong = labels[((labels < 0) | (labels >= self.num_classes))
                           & (labels != self.ignore_index)]
            if wrong.numel():
                where = sample.metainfo.get('seg_map_path', sample.metainfo.get('img_path'))
                raise ValueError(
                    f'expected labels below {self.num_classes}, the number of classes, or '
                    f'{self.ignore_index}, found {int(wrong[0])} in the mask `{where}`')
        return results


def watch_labels(dataset: Any, num_classes: int) -> None:
    """Put :class:`CheckSegLabels` behind a data set's transforms, once.

    Its ``pipeline``, or those inside wrappers and joined sets, are extended in place if they are a
    ``Compose`` or the list of a set that mixes images.
    """
    if not hasattr(dataset, 'pipeline'):
        for child in inner_sets(dataset):
            watch_labels(child, num_classes)
        return
    transforms = getattr(dataset.pipeline, 'transforms', dataset.pipeline)
    if not isinstance(transforms, list) or any(isinstance(t, CheckSegLabels) for t in transforms):
        return
    inner = dataset
    while not hasattr(inner, 'ignore_index') and inner_sets(inner):
        inner = inner_sets(inner)[0]
    transforms.append(CheckSegLabels(num_classes, getattr(inner, 'ignore_index', 255)))
    if isinstance(getattr(dataset, 'pipeline_types', None), list):  # `MultiImageMixDataset`
        dataset.pipeline_types.append(CheckSegLabels.__name__)
