"""Configs as they are read: the library of one that names none, classes in place of names."""

from importlib.util import find_spec

import pytest
import torch
from mmengine.config import Config
from mmseg.models import EncoderDecoder
from torch import nn

from mmkcr.engine.build import build_model, check_expected, default_shape, load_config
from mmkcr.engine.compressed_config import expand_compression, image_size
from mmkcr.models.counting import macs_report

HEADLESS = 'mmpretrain::dinov2/vit-small-p14_dinov2-pre_headless.py'
PURE = """
from mmpretrain.models import ImageClassifier, LinearClsHead, VisionTransformer

model = dict(
    type=ImageClassifier,
    backbone=dict(
        type=VisionTransformer, img_size=32, patch_size=8, out_type='avg_featmap',
        with_cls_token=False,
        arch=dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64)),
    head=dict(type=LinearClsHead, num_classes=10, in_channels=32))
default_scope = 'mmpretrain'
compression = dict(sites=['mlp_hidden'])
"""


@pytest.mark.parametrize('inherited', [False, True])
def test_the_library_of_a_config_is_its_scope(tmp_path, inherited):
    """mmpretrain's configs without a head name none."""
    (tmp_path / 'mine.py').write_text(f'_base_ = {HEADLESS!r}')
    config = load_config(tmp_path / 'mine.py' if inherited else HEADLESS)
    assert config.default_scope == 'mmpretrain'
    config.model.backbone.update(img_size=56, arch=dict(
        embed_dims=32, num_layers=1, num_heads=2, feedforward_channels=64))
    assert type(build_model(config)).__module__.startswith('mmpretrain.')
    # what a config says itself stays
    (tmp_path / 'mine.py').write_text(f"_base_ = {HEADLESS!r}\ndefault_scope = 'mmdet'")
    assert load_config(tmp_path / 'mine.py').default_scope == 'mmdet'


def test_a_config_of_classes(tmp_path):
    """MMEngine's pure Python style: wrapped, built, written and read like one of names."""
    (tmp_path / 'pure.py').write_text(PURE)
    config = load_config(tmp_path / 'pure.py')
    assert image_size(config) == (3, 32, 32)
    config.dump(tmp_path / 'plain.py')
    for found in (config, load_config(tmp_path / 'plain.py')):
        model = build_model(found)
        assert list(model.backbone.search_space.sites) == [
            f'layers.{index}.ffn.mlp_hidden' for index in range(2)]
        assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)
    assert config.model.backbone.type == 'mmkcr.Searchable'


def test_images_of_one_channel():
    """MACs are counted, and features measured, with the channels that the backbone takes."""
    backbone = dict(type='VisionTransformer', img_size=28, patch_size=7, in_channels=1, arch=dict(
        embed_dims=32, num_layers=1, num_heads=2, feedforward_channels=64))
    config = Config(dict(
        default_scope='mmpretrain', model=dict(
            type='ImageClassifier', backbone=backbone,
            head=dict(type='VisionTransformerClsHead', num_classes=10, in_channels=32)),
        compression=dict(
            sites=['mlp_channels'], gates=dict(type='mmkcr.GumbelChannelGate'),
            wrapper='mmkcr.SearchModel', price=dict(type='mmkcr.MacsPrice', target='70%'),
            regularizers=dict(kcr=dict(type='mmkcr.KernelComplexityLoss'))),
        train_cfg=dict(by_epoch=True, max_epochs=4)))
    assert image_size(config) == (1, 28, 28)
    model = build_model(expand_compression(config))
    assert model.macs_model().dense > 0 and model.regularizers.kcr.num_features == 32


@pytest.mark.parametrize('scale', [640, (640, 640), [640, 640]])
def test_a_test_image_with_one_size(scale):
    pipeline = [dict(type='Resize', scale=scale, keep_ratio=True)]
    config = Config(dict(default_scope='mmdet', model=dict(type='SSD'),
                         test_dataloader=dict(dataset=dict(pipeline=pipeline))))
    assert image_size(config) == (3, 640, 640)


class OwnSegmentor(EncoderDecoder):
    """A task model of one's own."""

    def __init__(self):
        nn.Module.__init__(self)


def test_the_image_size_of_a_task_model_of_ones_own():
    """It is that of the library that it comes from, also in a config without a scope."""
    preprocessor = dict(type='SegDataPreProcessor', size=(96, 64))
    config = Config(dict(model=dict(type='OwnSegmentor', backbone=dict(type='MixVisionTransformer'),
                                    data_preprocessor=preprocessor)))
    assert default_shape(config, OwnSegmentor()) == (3, 96, 64)
    # a user gives height and width; channels are the config's
    config.model.backbone.in_channels = 4
    assert default_shape(config, OwnSegmentor(), (3, 32, 48)) == (4, 32, 48)


@pytest.mark.parametrize('steps, size', [
    ([dict(type='ResizeEdge', scale=400), dict(type='CenterCrop', crop_size=384)], (384, 384)),
    ([dict(type='mmpretrain.Resize', scale=(96, 64))], (64, 96)),
    ([dict(type='Resize', scale=256, keep_ratio=True)], (224, 224)), ([], (224, 224))])
def test_the_image_size_of_a_classifier_is_that_of_its_test_images(steps, size):
    """Where the backbone takes any size, its config alone says nothing."""
    config = Config(dict(default_scope='mmpretrain', model=dict(
        type='ImageClassifier', backbone=dict(type='ConvNeXt', arch='tiny')),
        test_dataloader=dict(dataset=dict(pipeline=steps))))
    assert image_size(config) == (3, *size)


@pytest.mark.parametrize(('config', 'package'), [
    ('mmdet::glip/glip_atss_swin-t_a_fpn_dyhead_pretrain_obj365.py', 'transformers'),
    ('mmdet::grounding_dino/grounding_dino_swin-t_finetune_16xb2_1x_coco.py', 'fairscale')])
def test_a_package_that_a_model_lacks_is_named(config, package):
    if find_spec(package):
        pytest.skip(f'{package} is installed')
    with pytest.raises(ImportError, match=f'found no `{package}.*: pip install "?{package}'):
        build_model(load_config(config))


@pytest.mark.parametrize('raised, told, words', [
    (OSError, FileNotFoundError, '`ImageClassifier` needs, found .*connect to load'),
    (PermissionError, PermissionError, "^We couldn't connect\n")])  # of a file: named as it is
def test_files_of_a_hub_that_cannot_be_reached(raised, told, words, monkeypatch):
    def unreachable(*_):
        raise raised("We couldn't connect\nto load the files.")

    monkeypatch.setattr('mmkcr.engine.build.MODELS.build', unreachable)
    with pytest.raises(told, match=words):
        build_model(Config(dict(model=dict(type='ImageClassifier'))))


def test_detectors_that_read_text_are_not_counted():
    """And an assertion without words is told by its line."""
    class Silent(nn.Conv2d):
        def forward(self, images):
            raise AssertionError

    model = Silent(3, 4, 1)
    with pytest.raises(ValueError, match='AssertionError: raise AssertionError'):
        macs_report(model, (3, 8, 8))
    model.language_model = nn.Identity()
    with pytest.raises(ValueError, match='reads images alone, found `Silent`, which reads text'):
        macs_report(model, (3, 8, 8))


def test_a_metric_that_was_not_expected_is_told():
    config = dict(expected={'mIoU': (50., 2.)})
    assert not check_expected(config, {'mIoU': 48.1}) and not check_expected({}, {})
    for found in (47.9, 52.1, float('nan')):
        text, = check_expected(config, {'mIoU': found})
        assert text == f'expected `mIoU` of 50.0 +/- 2.0, found {found}'
    assert 'found None' in check_expected(config, {})[0]
