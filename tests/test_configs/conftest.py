"""Loads every config once, and stands in for data and structure files that are not here."""

import copy
import functools
from pathlib import Path

import pytest


def pytest_make_parametrize_id(val):
    """A config's name."""
    return Path(val).stem if str(val).startswith('configs/') else None


@pytest.fixture(scope='session')
def load():
    """What a config file stands for; each file is read once."""
    from config_files import ROOT
    from mmengine.config import Config

    from mmkcr.engine.compressed_config import expand_compression
    read = functools.lru_cache(maxsize=None)(
        lambda path: expand_compression(Config.fromfile(ROOT / path)))
    return lambda path: copy.deepcopy(read(path))


@pytest.fixture(scope='session')
def put_structure(load, tmp_path_factory):
    """Give a config the file that slimming the run of its structure's path would write.

    Every other unit is kept, and half of the blocks are replaced.
    """
    import torch
    from config_files import search_of, task_of
    from mmengine.registry import init_default_scope

    from lab.model_zoo import task_config, uninitialized
    from mmkcr.models.tasks import search_space
    from mmkcr.registry import MODELS
    folder = tmp_path_factory.mktemp('structures')

    @functools.lru_cache(maxsize=None)
    def structure_of(name):
        config = load(search_of(name))
        assert config.model.type.endswith('SearchModel') or name.startswith('dwconv-')
        init_default_scope('mmpretrain')  # all backbones with sites are mmpretrain's
        with uninitialized():
            space = search_space(MODELS.build(task_config(config).backbone))
        heads = [path for path, site in space.sites.items() if site.kind == 'head_operator']
        kept = {path: torch.arange(0, total, 1 if path in heads else 2)
                for path, total in space.totals().items()}
        kept.update((path, kept[path][:0]) for path in heads[:len(heads) // 2])
        file = folder / f'{name}.json'
        space.structure_for(kept).save(file)
        return str(file)

    def put(config):
        backbone = task_of(config).backbone
        if backbone.get('structure') is not None:
            where = Path(backbone.structure)
            assert where.parts[0] == 'work_dirs' and where.parts[2:] == ('slim', 'structure.json')
            backbone.structure = structure_of(where.parts[1])
        return config

    return put


@pytest.fixture(scope='session')
def digits(written_digits):
    """The digits on disk."""
    from lab.digits import DigitsOptions
    return written_digits(DigitsOptions())


@pytest.fixture(scope='session')
def questions(tmp_path_factory):
    """Questions about digits on disk."""
    from tools.dataset_converters.digits_vqa import QuestionOptions, write_questions
    folder = tmp_path_factory.mktemp('vqa') / 'digits-vqa'
    write_questions(folder, QuestionOptions(train_scenes=30, val_scenes=8))
    return folder


#: Fixtures that write the data of folders.
WRITTEN = {'data/digits': 'digits', 'data/digits-vqa': 'questions'}


@pytest.fixture(scope='session')
def no_scenes(tmp_path_factory):
    """A COCO file without images."""
    file = tmp_path_factory.mktemp('coco') / 'instances.json'
    file.write_text('{"images": [], "annotations": [], "categories": [{"id": 1, "name": "0"}]}')
    return file


@pytest.fixture
def prepared(load, put_structure, request, tmp_path, monkeypatch):
    """A config that a Runner can be built from on this machine."""
    from config_files import ROOT, stand_in
    from mmengine.config import Config
    from mmengine.registry import init_default_scope

    from mmkcr.engine.build import load_config

    # a Runner prints its config three times, which takes seconds each to format
    monkeypatch.setattr(Config, 'pretty_text', property(lambda self: repr(self.to_dict())))

    def prepare(path, options=None):
        config = put_structure(
            load(path) if options is None else load_config(ROOT / path, options))
        config.work_dir = str(tmp_path)
        config.experiment_name = Path(path).stem
        config.log_level = 'ERROR'
        init_default_scope(config.get('default_scope', 'mmpretrain'))
        parts = [part for part in ('train', 'val', 'test') if config.get(f'{part}_dataloader')]
        for part in parts:
            config[f'{part}_dataloader'] = copy.deepcopy(config[f'{part}_dataloader'])
            loader = config[f'{part}_dataloader']  # which two parts may share
            loader.num_workers, loader.persistent_workers = 0, False
            inner = loader.dataset.get('dataset', loader.dataset)
            if inner.get('data_root') in WRITTEN:
                inner.data_root = str(request.getfixturevalue(WRITTEN[inner.data_root]))
            else:
                loader.dataset = stand_in(loader.dataset)
            if 'ann_file' in config.get(f'{part}_evaluator', {}):
                config[f'{part}_evaluator'].ann_file = str(request.getfixturevalue('no_scenes'))
        return config

    return prepare
