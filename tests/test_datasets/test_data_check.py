"""Missing data folders are one sentence."""

import re
from pathlib import Path

import pytest
from mmengine.config import Config

import mmkcr  # noqa: F401  (lets configs refer to the hosts' bases)
from mmkcr.datasets import check_data_folders
from mmkcr.engine.build import load_config

CONFIGS = Path(__file__).parents[2] / 'configs'
BASES = CONFIGS / '_base_' / 'datasets'


def load(name, root):
    """Config of a digits data set at ``root``."""
    return Config.fromstring((BASES / f'{name}.py').read_text().replace('data/digits', str(root)),
                             '.py')


NAMES = sorted(path.stem for path in BASES.glob('digit*.py')
               if '_base_' not in path.read_text())


def test_names():
    assert NAMES == ['digit_scenes_instance', 'digit_scenes_semantic', 'digits_bs64']


@pytest.mark.parametrize('name', NAMES)
def test_digits(digits_root, tmp_path, name):
    check_data_folders(load(name, digits_root))
    missing = tmp_path / 'digits'
    with pytest.raises(FileNotFoundError) as error:
        check_data_folders(load(name, missing))
    assert f'digits.py --out {missing}`' in str(error.value)
    assert '`train_dataloader`' in str(error.value) and '\n' not in str(error.value)


def test_part_is_missing(tmp_path):
    (tmp_path / 'digits/train/3').mkdir(parents=True)
    cfg = load('digits_bs64', tmp_path / 'digits')
    check_data_folders(cfg, ['train_dataloader'])
    with pytest.raises(FileNotFoundError, match='`val_dataloader`.*digits/val`'):
        check_data_folders(cfg)


def test_wrapped_data_set_without_a_remedy(tmp_path):
    cfg = Config.fromfile(BASES / 'imagenet100_bs64.py')
    cfg.train_dataloader.dataset.dataset.data_root = str(tmp_path)
    with pytest.raises(FileNotFoundError) as error:
        check_data_folders(cfg)
    assert f'`{tmp_path}/train`' in str(error.value) and 'digits.py' not in str(error.value)


def test_images_that_are_not_in_folders_of_their_classes(tmp_path):
    """As the archive of ImageNet's validation images is; a list of labels is as good."""
    cfg = Config.fromfile(BASES / 'imagenet100_bs64.py')
    data = cfg.val_dataloader.dataset.dataset
    data.data_root = str(tmp_path)
    (tmp_path / 'val').mkdir()
    (tmp_path / 'val/ILSVRC2012_val_00000001.JPEG').touch()
    with pytest.raises(FileNotFoundError, match='a folder for each class of `val_dataloader` in '
                       f'`{tmp_path}/val`.*found none'):
        check_data_folders(cfg, ['val_dataloader'])
    (tmp_path / 'meta').mkdir()
    (tmp_path / 'meta/val.txt').touch()
    check_data_folders(cfg, ['val_dataloader'])
    (tmp_path / 'meta/val.txt').unlink()
    (tmp_path / 'val/n01440764').mkdir()
    check_data_folders(cfg, ['val_dataloader'])


@pytest.mark.parametrize('data, config', [
    ('ImageNet', 'kcr/retrain/kcr-retrain_swin-tiny_8xb64_in1k.py'),
    ('COCO', 'kcr/detection/kcr-cascade-mask-rcnn_swin-tiny_8xb2_coco.py'),
    ('ADE20K', 'kcr/segmentation/kcr-upernet_swin-tiny_8xb2_ade20k.py')])
def test_folders_of_the_page_are_those_of_the_configs(data, config):
    page = (CONFIGS.parent / 'docs/get_started.md').read_text()
    row, = re.findall(rf'^\| {data} \|(.*)\|$', page, re.M)
    root, *below = re.findall('`(.*?)`', row)
    found = load_config(CONFIGS / config)
    for loader in (found.train_dataloader, found.val_dataloader):
        told = loader.dataset
        assert told.data_root.rstrip('/') == root
        prefix = told.get('data_prefix') or dict(split=told.get('split'))
        names = [*prefix.values(), *filter(None, [told.get('ann_file')])]
        assert {name.rstrip('/') for name in names} <= {*below}


@pytest.mark.parametrize('name, root', [('flowers102', 'data/Flowers102'),
                                        ('pets', 'data/Oxford-IIIT_Pets'),
                                        ('cars', 'data/Stanford_Cars')])
def test_a_split_that_is_no_folder(name, root, tmp_path, monkeypatch):
    """As these sets are published, and as the host reads them: only the root is known."""
    monkeypatch.chdir(tmp_path)
    cfg = Config.fromfile(CONFIGS / f'kcr/transfer/kcr-transfer_vit-base_8xb64_{name}.py')
    with pytest.raises(FileNotFoundError, match=f'`{root}`'):
        check_data_folders(cfg)
    Path(root).mkdir(parents=True)
    check_data_folders(cfg)


def test_sets_that_download_themselves(tmp_path):
    cfg = Config.fromfile(BASES / 'cifar10_bs96_224.py')
    cfg.train_dataloader.dataset.data_root = str(tmp_path / 'none')
    check_data_folders(cfg, ['train_dataloader'])
    cfg.train_dataloader.dataset.download = False
    with pytest.raises(FileNotFoundError, match='none'):
        check_data_folders(cfg, ['train_dataloader'])


def test_what_is_passed_over(tmp_path):
    remote = dict(dataset=dict(type='ImageNet', data_root='s3://bucket/imagenet', split='train'))
    made_up = dict(dataset=dict(type='LabelledNumbers'))
    joined = dict(dataset=dict(type='ConcatDataset', datasets=[dict(data_root=str(tmp_path))]))
    check_data_folders(dict(train_dataloader=remote, val_dataloader=None))
    check_data_folders(dict(train_dataloader=made_up, val_dataloader=joined))
    mapped = dict(type='CocoDataset', data_root='none/', ann_file='a.json', backend_args=dict(
        backend='petrel', path_mapping={'none/': 's3://bucket/'}))
    check_data_folders(dict(val_dataloader=dict(dataset=mapped)))
    (tmp_path / 'captions.json').write_text('{"annotations": []}')  # without categories
    check_data_folders(dict(val_dataloader=dict(dataset=dict(
        type='CocoCaptionDataset', data_root=str(tmp_path), ann_file='captions.json'))))
    joined['dataset']['datasets'].append(dict(data_root=str(tmp_path / 'none')))
    with pytest.raises(FileNotFoundError, match='none'):
        check_data_folders(dict(val_dataloader=joined))
