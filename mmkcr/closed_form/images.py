"""Calibration images of a config or a folder, in the form that a task model takes."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dataset import Compose, default_collate, pseudo_collate
from mmengine.registry import DATASETS, init_default_scope
from torch import nn
from torch.utils.data import Dataset

from mmkcr.datasets.data_check import pipeline_config
from mmkcr.evaluation.features import preprocessed, with_pipeline
from mmkcr.hosts import UnreadableImageError
from mmkcr.models.tasks import find_task, is_dense_task, is_self_supervised
from .batches import ImageBatches
from .image_folder import digest_files, draw_images, list_images, origin_of

_WITHOUT_LABELS = ('LabelAnswer', 'LoadAnnotations', 'LoadPanopticAnnotations')


class CalibrationImages(ImageBatches):
    """Batches of images after the test transforms, loaded on demand.

    Images of detectors and segmentors differ in size: each is a batch of its own.

    Args:
        dataset (Dataset): Its samples have passed the test transforms. Its ``get_data_info``, if
            any, gives the files.
        indices (Sequence[int]): Places of the images in the data set.
        model (nn.Module): The task model, whose data preprocessor makes the batches.
    """

    def __init__(self, dataset: Any, indices: Sequence[int], model: nn.Module) -> None:
        self._dataset, self._model = dataset, model
        self._dense = is_dense_task(find_task(model))
        super().__init__(indices)

    def _kind(self, image: int) -> Any:
        return image if self._dense else None

    def sources(self) -> list[Any]:
        """The file of each image, or the origin of a crop by the names of files.

        ``cat@1.jpg`` and ``cat@2.jpg`` of a folder are two crops of one picture. An image without
        a file, as of CIFAR, is its own source.
        """
        return [self._source(index) for index in self._images]

    def _source(self, index: int) -> Any:
        path = self._file(index)
        return index if path is None else origin_of(path)

    def _file(self, index: int) -> Path | None:
        """The file of an image, if the data set knows it."""
        if not hasattr(self._dataset, 'get_data_info'):
            return None
        path = self._dataset.get_data_info(index).get('img_path')
        return Path(path) if path else None

    def digest(self) -> str:
        """SHA-256 that differs for other images or other transforms, see :func:`digest_files`.

        Where images have no local files (CIFAR, a remote storage), the first and the last batch
        must do.
        """
        ends = (self[0], self[-1]) if len(self) else ()
        return digest_files(map(self._file, self._images), (batch['inputs'] for batch in ends))

    def _batch(self, images: list[int]) -> Any:
        samples = [self._dataset[index] for index in images]
        if not all('inputs' in sample for sample in samples):
            raise ValueError('expected test transforms that load an image file, found none, as of '
                             'data sets that hold their images (CIFAR, MNIST): calibrate on the '
                             'training set (without `--calibration`)')
        # a list of images would be views of one image to the preprocessor of MAE and the like
        views = is_self_supervised(find_task(self._model))
        return preprocessed(self._model, (default_collate if views else pseudo_collate)(samples))


def calibration_images(config: Config, model: nn.Module, folder: str | None = None,
                       count: int = 512, seed: int = 0) -> CalibrationImages:
    """Draw images at random from a config's training set, or from a folder.

    Args:
        config (Config): Its test transforms are applied.
        model (nn.Module): The task model, whose data preprocessor makes the batches.
        folder (str, optional): Folder that is searched at any depth. Defaults to None: the
            training set.
        count (int): Maximum number of images. Defaults to 512.
        seed (int): Seed of the draw. Defaults to 0.

    Raises:
        ValueError: The folder has no images, or the config no data set to take them from.
        FileNotFoundError: There is no such folder.
    """
    init_default_scope(config.get('default_scope', 'mmpretrain'))
    if folder is None:
        for name in ('train_dataloader', 'test_dataloader'):
            if config.get(name) is None:
                raise ValueError(f'expected a config with `{name}`, found none; give a folder of '
                                 'images instead (`--calibration FOLDER`)')
        train = DATASETS.build(copy.deepcopy(config.train_dataloader.dataset))
        dataset = with_pipeline(train, Compose(pipeline_config(config.test_dataloader.dataset)))
    else:
        dataset = _Folder(config, folder)
    return CalibrationImages(dataset, draw_images(len(dataset), count, seed), model)


class _Folder(Dataset):
    """The images below a folder, after the test transforms of a config."""

    def __init__(self, config: Config, folder: str) -> None:
        self._paths = list_images(folder)
        steps = pipeline_config((config.get('test_dataloader') or {}).get('dataset'))
        if not steps:
            raise ValueError('expected a config with `test_dataloader`, whose transforms the '
                             f'images of `{folder}` go through, found none')
        # plain images have no annotations to load
        self._transform = Compose([step for step in steps if step['type'].split('.')[-1]
                                   not in _WITHOUT_LABELS])

    def __len__(self) -> int:
        return len(self._paths)

    def get_data_info(self, index: int) -> dict[str, Any]:
        """The input of the transforms: path and number of an image."""
        return dict(img_path=str(self._paths[index]), img_id=index)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            return self._transform(self.get_data_info(index))
        except UnreadableImageError:  # names the file
            raise
        except Exception as error:  # of whatever transforms images
            raise ValueError(f'expected an image that can be read, found `{self._paths[index]}` '
                             f'({error})') from error
