"""Networks of timm and transformers by name: built, loaded whole, and fed as they say."""

import json
import sys

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch.testing import assert_close

from mmkcr.apis.networks import build_network, is_named, load_network, load_with_images

timm = pytest.importorskip('timm')
TINY = dict(img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2)
NAME = 'vit_tiny_patch16_224'


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """A folder of timm, weights of a network with 7 classes, and images of several sizes."""
    folder = tmp_path_factory.mktemp('networks')
    torch.manual_seed(0)
    model = timm.create_model(NAME, num_classes=7, **TINY).eval()
    data = dict(model.pretrained_cfg, input_size=(3, 32, 32), mean=(0.1, 0.2, 0.3), crop_pct=0.5)
    (folder / 'tiny').mkdir()
    (folder / 'tiny/config.json').write_text(json.dumps(dict(
        architecture=NAME, num_classes=7, pretrained_cfg=data, model_args=TINY)))
    save_file(model.state_dict(), folder / 'tiny/model.safetensors')
    torch.save(dict(model={f'module.{name}': value for name, value in model.state_dict().items()}),
               folder / 'of_training.pth')
    torch.save(timm.create_model('resnet10t', num_classes=7).state_dict(), folder / 'other.pth')
    (folder / 'images').mkdir()
    for number in range(6):
        pixels = torch.randint(0, 256, (40 + number, 60, 3), dtype=torch.uint8)
        Image.fromarray(pixels.numpy()).save(folder / f'images/{number}.png')
    return folder, model


@pytest.mark.parametrize('name, named', [
    ('timm::x', True), ('transformers::a/b', True), ('mmdet::a.py', False), ('timm', False)])
def test_names(name, named):
    assert is_named(name) == named


@pytest.mark.parametrize('checkpoint', [None, 'of_training.pth'])
def test_a_folder_of_timm_has_its_weights_or_takes_others(files, checkpoint):
    folder, model = files
    network = load_network(f'timm::{folder}/tiny', checkpoint and str(folder / checkpoint))
    image = torch.rand(1, 3, 32, 32)
    assert_close(network.model(image), model(image), rtol=0, atol=0)
    assert network.shape == (3, 32, 32) and network.gives_scores()


def test_a_checkpoint_says_the_number_of_classes(tmp_path):
    torch.manual_seed(0)
    model = timm.create_model('vit_tiny_patch16_224', num_classes=7).eval()
    save_file(model.state_dict(), tmp_path / 'weights.safetensors')
    network = load_network('timm::vit_tiny_patch16_224', str(tmp_path / 'weights.safetensors'),
                           (3, 32, 64))
    model.set_input_size(img_size=(32, 64))
    image = torch.rand(1, 3, 32, 64)
    assert_close(network.model(image), model(image), rtol=0, atol=0)
    assert network.transform(Image.new('RGB', (90, 50))).shape == (3, 32, 64)


def test_images_are_read_as_the_network_says(files):
    folder, _ = files
    _, images = load_with_images(f'timm::{folder}/tiny', None, str(folder / 'images'), 4, seed=3)
    assert images.images == 4 and len({*images.sources()}) == 4
    own = timm.create_model(f'local-dir:{folder}/tiny', pretrained=False)
    transform = timm.data.create_transform(**timm.data.resolve_data_config(model=own))
    expected = [transform(Image.open(path)) for path in sorted(folder.glob('images/*'))]
    for image in images:
        assert any(torch.equal(image[0], other) for other in expected)
    assert images.of_size(4)[0].shape == (4, 3, 32, 32)


@pytest.mark.parametrize('name, checkpoint, message', [
    ('timm::vit_tiny_patch16_244', None, 'did you mean `vit_tiny_patch16_224`?'),
    ('timm::vit_tiny_patch16_224', None, 'expected a checkpoint, or `--pretrained`, for'),
    ('timm::{}/tiny', 'other.pth', r'\(cls_token, pos_embed, .*unexpected \(conv1'),
    ('timm::{}/images', None, 'found one without `config.json`')])
def test_what_is_refused(files, name, checkpoint, message):
    folder, _ = files
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        load_network(name.format(folder), checkpoint and str(folder / checkpoint))
    assert str(caught.value).startswith('expected ') and '\n' not in str(caught.value)


def test_a_folder_without_weights(files, tmp_path):
    (tmp_path / 'config.json').write_text((files[0] / 'tiny/config.json').read_text())
    with pytest.raises(FileNotFoundError, match='expected weights .* found none: give a check'):
        load_network(f'timm::{tmp_path}')
    assert build_network(f'timm::{tmp_path}').shape == (3, 32, 32)  # random


def test_a_library_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, 'transformers', None)
    with pytest.raises(ImportError, match='expected transformers for `transformers::x`, found'):
        build_network('transformers::x')


@pytest.fixture(scope='module')
def of_transformers(tmp_path_factory):
    """A folder of ``save_pretrained`` with its processor."""
    transformers = pytest.importorskip('transformers')
    folder = tmp_path_factory.mktemp('transformers') / 'tiny'
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, num_labels=5)).eval()
    model.save_pretrained(folder)
    processor = transformers.ViTImageProcessor(size=dict(height=32, width=32), image_mean=[.1] * 3)
    processor.save_pretrained(folder)
    return folder, model, processor


def test_a_folder_of_transformers(of_transformers, files):
    folder, model, processor = of_transformers
    network, images = load_with_images(f'transformers::{folder}', None, str(files[0] / 'images'), 6,
                                       seed=0)
    image = torch.rand(1, 3, 32, 32)
    assert_close(network.model(image).logits, model(image).logits)
    assert network.shape == (3, 32, 32) and network.gives_scores()
    expected = [processor(Image.open(path), return_tensors='pt')['pixel_values']
                for path in sorted(files[0].glob('images/*'))]
    assert all(any(torch.allclose(image, other, atol=0.02) for other in expected)
               for image in images)


def test_a_folder_of_transformers_with_other_weights(of_transformers, files):
    folder, model, _ = of_transformers
    with pytest.raises(ValueError, match='vit.embeddings.cls_token'):
        load_network(f'transformers::{folder}', str(files[0] / 'other.pth'))
    with pytest.raises(FileNotFoundError, match='expected a folder of `save_pretrained`, or a'):
        load_network('transformers::google/vit-base-patch16-224')
