"""Batches of images of several sizes, as data sets of scenes have them."""

import os

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmpretrain.models import MAE, ClsDataPreprocessor
from mmpretrain.structures import DataSample
from mmseg.models import EncoderDecoder, SegDataPreProcessor
from mmseg.structures import SegDataSample
from PIL import Image
from torch import nn

from mmkcr.apis import compress, compress_files
from mmkcr.closed_form.image_folder import find_images
from mmkcr.closed_form.images import CalibrationImages, calibration_images

#: All of a model that is looked at.
CLASSIFIER = nn.ModuleDict(dict(data_preprocessor=ClsDataPreprocessor()))
SIZES = [(24, 40), (40, 24), (24, 24), (24, 40)]


def test_images_of_several_sizes_come_one_by_one():
    """To a segmentor: what one gets does not depend on what else is there."""
    model = EncoderDecoder.__new__(EncoderDecoder)
    nn.Module.__init__(model)
    model.backbone = nn.Identity()
    model.data_preprocessor = SegDataPreProcessor(mean=[2.] * 3, std=[4.] * 3)
    images = [torch.randint(1, 255, (3, *size), dtype=torch.uint8) for size in SIZES]
    batches = CalibrationImages([dict(
        inputs=image, data_samples=SegDataSample(metainfo=dict(img_shape=size)))
        for image, size in zip(images, SIZES)], range(4), model).of_size(3)
    assert len(batches) == 4
    for batch, image, size in zip(batches, images, SIZES):
        assert torch.equal(batch['inputs'][0], (image - 2.) / 4)
        assert [sample.img_shape for sample in batch['data_samples']] == [size]


def test_the_transforms_of_several_test_sets(tmp_path):
    """Images of a folder go through those of the first, as of mmdet's Grounding DINO on ODinW."""
    pipeline = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations'),
                dict(type='PackInputs')]
    config = Config(dict(test_dataloader=dict(dataset=dict(
        type='ConcatDataset', datasets=[dict(type='CustomDataset', pipeline=pipeline)] * 2))))
    Image.fromarray(np.full((4, 6, 3), 7, np.uint8)).save(tmp_path / 'a.png')
    os.mkfifo(tmp_path / 'pipe.png')  # to read it would wait for ever
    (batch, ) = calibration_images(config, CLASSIFIER, str(tmp_path))
    assert batch['inputs'].shape == (1, 3, 4, 6) and (batch['inputs'] == 7).all()
    config.test_dataloader.dataset.datasets[0].pipeline = pipeline[-1:]  # as of CIFAR
    with pytest.raises(ValueError, match='expected test transforms that load an image file'):
        calibration_images(config, CLASSIFIER, str(tmp_path))[0]
    config.test_dataloader.dataset.datasets = []
    with pytest.raises(ValueError, match='with `test_dataloader`, whose transforms'):
        calibration_images(config, CLASSIFIER, str(tmp_path))


def test_images_of_a_folder_and_why_others_are_left_out(tmp_path, capsys):
    """Linked folders count once, copies in hidden folders do not count."""
    folder, store = tmp_path / 'images', tmp_path / 'store'
    for place in ('images/a/1.png', 'images/a/2.PNG', 'images/.cache/1.png',
                  'images/.cache/x/2.png', 'images/.3.png', 'images/notes.txt',
                  'store/b/3.jpg', 'store/b/names.csv'):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(b'')
    (folder / 'b').symlink_to(store / 'b')
    (folder / 'again').symlink_to(folder / 'a')
    (folder / 'a/circle').symlink_to(folder)
    (folder / '4.png').symlink_to(tmp_path / 'gone.png')
    found, left_out = find_images(folder)
    assert [str(path.relative_to(folder)) for path in found] == ['a/1.png', 'a/2.PNG', 'b/3.jpg']
    assert left_out == {'hidden': 3, 'of other kinds': 2, 'linked twice': 2, 'no files': 1}
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    config = Config(dict(test_dataloader=dict(dataset=dict(pipeline=pipeline))))
    calibration_images(config, CLASSIFIER, str(folder))
    told = capsys.readouterr().err
    assert f'`{folder}`: 3 (left out: ' in told and '3 hidden' in told and '2 linked twice' in told
    (tmp_path / 'none').mkdir()
    (tmp_path / 'none/.1.png').touch()
    with pytest.raises(ValueError, match=r'found none \(left out: 1 hidden\)'):
        calibration_images(config, CLASSIFIER, str(tmp_path / 'none'))


def test_a_masked_image_model_gets_a_batch_of_whole_images():
    """Not a list of images, which its own preprocessor would take for views of one image."""
    arch = dict(embed_dims=16, num_layers=2, num_heads=2, feedforward_channels=32)
    model = MAE(
        backbone=dict(type='mmpretrain.MAEViT', arch=arch, img_size=16, patch_size=4),
        neck=dict(type='mmpretrain.MAEPretrainDecoder', patch_size=4, num_patches=16, embed_dim=16,
                  decoder_embed_dim=16, decoder_depth=1, decoder_num_heads=2),
        head=dict(type='mmpretrain.MAEPretrainHead', patch_size=4, loss=dict(
            type='mmpretrain.PixelReconstructionLoss', criterion='L2')),
        data_preprocessor=dict(type='mmpretrain.SelfSupDataPreprocessor', mean=[1., 2., 3.],
                               std=[4.] * 3, to_rgb=True))
    images = torch.randint(1, 255, (12, 3, 16, 16), dtype=torch.uint8)
    batches = CalibrationImages(
        [dict(inputs=image, data_samples=DataSample()) for image in images], range(12), model)
    batches = batches.of_size(4)
    mean = torch.tensor([1., 2., 3.]).reshape(3, 1, 1)
    assert torch.equal(batches[1]['inputs'], (images[4:8].flip(1) - mean) / 4)
    found = compress(model, batches, '80%', input_shape=(3, 16, 16), progress=False,
                     forward=compress_files.task_outputs)
    assert 0 < found.agreement['error'] < 0.5


def test_files_for_a_runtime_take_one_size(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(compress_files.FileBench, 'deploy', lambda bench, *_: given.append(bench))
    batches = [dict(inputs=torch.full((2, 3, *size), float(place)))
               for place, size in enumerate(SIZES)]
    options = compress_files.FileOptions(config='', checkpoint='', input_shape=(3, 24, 40))
    task = compress_files.CompressTask(options, None, nn.Conv2d(3, 2, 1), {}, batches, tmp_path, {})
    compress_files.int8_files(task, nn.Identity(), tmp_path, 'onnxruntime')
    images = [*given[0].ranges, *given[0].looked_at, *given[0].held_out]
    assert len(images) == 2 * len(SIZES)
    for place, image in enumerate(images):
        assert image.shape == (1, 3, 24, 40) and (image.round(decimals=3) == place // 2).all()


def test_a_broken_image_is_named_once(tmp_path):
    (tmp_path / 'a.png').write_bytes(b'no image')
    config = Config(dict(test_dataloader=dict(dataset=dict(
        pipeline=[dict(type='mmpretrain.LoadImageFromFile')]))))
    with pytest.raises(ValueError) as refused:
        calibration_images(config, nn.Identity(), str(tmp_path))[0]
    assert str(refused.value).startswith('expected an image that can be read at `')
    assert str(refused.value).count('expected') == 1


@pytest.mark.parametrize('whole', [True, False])
def test_another_image_in_the_middle_is_noticed(whole, tmp_path):
    """Not only one of the first or the last batch, in a folder and in a data set."""
    for place in range(12):
        Image.fromarray(np.full((4, 4, 3), place, np.uint8)).save(tmp_path / f'{place:02}.png')
    pipeline = [dict(type='LoadImageFromFile'), dict(type='PackInputs')]
    dataset = dict(type='CustomDataset', data_prefix=str(tmp_path), with_label=False,
                   pipeline=pipeline)
    config = Config(dict(train_dataloader=dict(dataset=dataset),
                         test_dataloader=dict(dataset=dataset)))

    def digest():
        batches = calibration_images(config, CLASSIFIER, str(tmp_path) if whole else None)
        assert len(batches) == 12
        return batches.digest(), batches

    first, batches = digest()
    assert first == digest()[0]
    assert batches[:8].digest() != first
    middle = batches[5]['data_samples'][0].img_path
    Image.fromarray(np.full((4, 4, 3), 99, np.uint8)).save(middle)
    assert first != digest()[0]


def test_crops_of_one_file_have_one_source(tmp_path):
    """Its name in front of the mark, in its folder."""
    config = Config(dict(test_dataloader=dict(dataset=dict(pipeline=[
        dict(type='LoadImageFromFile'), dict(type='PackInputs')]))))
    names = ['a/cat@1.png', 'a/cat@2.png', 'a/dog.png', 'b/cat@1.png']
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / name)
    batches = calibration_images(config, CLASSIFIER, str(tmp_path))
    of_image = {int(batches[place]['inputs'].mean()): source
                for place, source in enumerate(batches.sources())}
    assert of_image[0] == of_image[1] and len(set(of_image.values())) == 3
