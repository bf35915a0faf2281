"""Batches of images of several sizes, as data sets of scenes have them."""

import pytest
import torch
from mmengine.config import Config
from mmseg.models import SegDataPreProcessor
from mmseg.structures import SegDataSample
from torch import nn

from mmkcr.apis import compress_files
from mmkcr.apis.calibration_data import CalibrationImages, calibration_images

SIZES = [(24, 40), (40, 24), (24, 24), (24, 40)]


def test_a_segmentor_gets_images_of_several_sizes_padded():
    model = nn.Module()
    model.data_preprocessor = SegDataPreProcessor(mean=[2.] * 3, std=[4.] * 3)
    images = [torch.randint(1, 255, (3, *size), dtype=torch.uint8) for size in SIZES]
    batches = CalibrationImages(lambda index: dict(
        inputs=images[index], data_samples=SegDataSample(metainfo=dict(img_shape=SIZES[index]))),
        range(4), model, 3)
    first, last = batches
    assert last['inputs'].shape == (1, 3, 24, 40)
    assert [sample.img_shape for sample in first['data_samples']] == SIZES[:3]
    for found, image, (height, width) in zip(first['inputs'], images, SIZES):
        assert found.shape == (3, 40, 40)
        assert torch.equal(found[:, :height, :width], (image - 2.) / 4)
        assert not found[:, height:].any() and not found[..., width:].any()


def test_files_for_a_runtime_take_one_size(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(compress_files, 'deploy_int8', lambda *args: given.extend(args[2:4]))
    batches = [dict(inputs=torch.full((2, 3, *size), float(place)))
               for place, size in enumerate(SIZES)]
    compress_files._int8_files(nn.Identity(), nn.Identity(), batches, tmp_path, 'onnxruntime')
    assert [len(part) for part in given] == [3, 1]
    for place, images in enumerate([*given[0], *given[1]]):
        assert images.shape == (2, 3, 24, 40) and (images.round(3) == place).all()


def test_a_broken_image_is_named_once(tmp_path):
    (tmp_path / 'a.png').write_bytes(b'no image')
    config = Config(dict(test_dataloader=dict(dataset=dict(
        pipeline=[dict(type='mmpretrain.LoadImageFromFile')]))))
    with pytest.raises(ValueError) as refused:
        calibration_images(config, nn.Identity(), str(tmp_path))[0]
    assert str(refused.value).startswith('expected an image that can be read at `')
    assert str(refused.value).count('expected') == 1
