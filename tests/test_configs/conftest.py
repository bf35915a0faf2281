"""Loads every config once, and stands in for data and structure files that are not here."""

import copy
import functools
import inspect
from pathlib import Path

import pytest
import torch
from config_files import ROOT, search_of
from mmengine.config import Config, ConfigDict
from mmengine.dataset import Compose
from mmengine.registry import DATASETS as ROOT_DATASETS
from mmengine.registry import TRANSFORMS, init_default_scope
from mmpretrain.registry import DATASETS
from torch.utils.data import Dataset

from lab.model_zoo import task_config, uninitialized
from mmkcr.core import Structure
from mmkcr.engine.build import load_config
from mmkcr.engine.compressed_config import compressed_config
from mmkcr.registry import MODELS

SAMPLES = dict(ImageNet=1281167, ClassSubset=126000, Flowers102=2040, OxfordIIITPet=3680,
               StanfordCars=8144, CocoDataset=118287,
               RepeatDataset=591435, ADE20KDataset=20210, BaseSegDataset=400,
               CIFAR10=50000, CIFAR100=50000, CityscapesDataset=2975)


@DATASETS.register_module()
class StandIn(Dataset):
    """As long as the real data set, with its transforms, without its images."""

    def __init__(self, length, pipeline, classes=()):
        self.length, self.metainfo = length, dict(classes=tuple(classes))
        self.pipeline = Compose([TRANSFORMS.build(transform) for transform in pipeline])

    def __len__(self):
        return self.length

    def get_data_info(self, index):
        return dict(width=640, height=480)


def stand_in(cfg):
    """Check a data set's config, and replace it."""
    with ROOT_DATASETS.switch_scope_and_registry(None) as registry:  # of the config's scope
        cls = registry.get(cfg.type)
    assert cls is not None, f'unknown data set {cfg.type}'
    args = {key: value for key, value in cfg.items() if key not in ('type', '_scope_')}
    inspect.signature(cls.__init__).bind(None, **args)
    pipeline = stand_in(cfg.dataset).pipeline if 'dataset' in cfg else cfg.pipeline
    classes = (cfg.get('metainfo') or getattr(cls, 'METAINFO', {})).get('classes', ())
    return ConfigDict(type='mmpretrain.StandIn', length=SAMPLES[cls.__name__], pipeline=pipeline,
                      classes=classes)


@pytest.fixture(scope='session')
def load():
    """What a config file stands for; each file is read once."""
    read = functools.lru_cache(maxsize=None)(
        lambda path: compressed_config(Config.fromfile(ROOT / path)))
    return lambda path: copy.deepcopy(read(path))


@pytest.fixture(scope='session')
def structure_of(load, tmp_path_factory):
    """The file that slimming a search config would write: every other channel."""
    folder = tmp_path_factory.mktemp('structures')

    @functools.lru_cache(maxsize=None)
    def build(name):
        config = load(search_of(name))
        assert config.model.type in ('mmkcr.SearchModel', 'mmkcr.MaskedSearchModel')
        init_default_scope('mmpretrain')  # all backbones with sites are mmpretrain's
        with uninitialized():
            backbone = MODELS.build(task_config(config).backbone)
        sites = {site: dict(total=total, kept=list(range(0, total, 2)))
                 for site, total in backbone.sites().items()}
        empty = backbone.structure_for({site: torch.tensor([0]) for site in sites})
        file = folder / f'{name}.json'
        Structure.load(dict(empty.to_dict(), sites=sites)).save(file)
        return str(file)

    return build


@pytest.fixture(scope='session')
def digits(written_digits):
    """The digits on disk."""
    from lab.digits import DigitsOptions
    return written_digits(DigitsOptions())


@pytest.fixture(scope='session')
def no_scenes(tmp_path_factory):
    """A COCO file without images."""
    file = tmp_path_factory.mktemp('coco') / 'instances.json'
    file.write_text('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "0"}]}')
    return file


@pytest.fixture
def prepared(load, structure_of, request, tmp_path, monkeypatch):
    """A config that a Runner can be built from on this machine."""
    # a Runner prints its config three times, which takes seconds each to format
    monkeypatch.setattr(Config, 'pretty_text', property(lambda self: repr(self.to_dict())))

    def prepare(path, options=None):
        config = load(path) if options is None else load_config(ROOT / path, options)
        config.work_dir = str(tmp_path)
        config.experiment_name = Path(path).stem
        config.log_level = 'ERROR'
        task = config.model.get('architecture', config.model)
        if task.backbone.get('structure') is not None:
            where = Path(task.backbone.structure)
            assert where.parts[0] == 'work_dirs' and where.parts[2:] == ('slim', 'structure.json')
            task.backbone.structure = structure_of(where.parts[1])
        init_default_scope(config.get('default_scope', 'mmpretrain'))
        for part in ('train', 'val', 'test'):
            loader = config[f'{part}_dataloader']
            loader.num_workers, loader.persistent_workers = 0, False
            if loader.dataset.get('data_root') == 'data/digits':
                loader.dataset.data_root = str(request.getfixturevalue('digits'))
            else:
                loader.dataset = stand_in(loader.dataset)
        for part in ('val', 'test'):
            if 'ann_file' in config[f'{part}_evaluator']:
                config[f'{part}_evaluator'].ann_file = str(request.getfixturevalue('no_scenes'))
        return config

    return prepare
