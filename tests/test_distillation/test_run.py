"""Distillation without labels: never worse, exact resume, several processes, all frameworks."""

import copy
import functools
import os
from pathlib import Path

import pytest
import timm
import torch
from mmengine.hooks import Hook
from torch import nn
from torch.multiprocessing import start_processes

from mmkcr.closed_form.compression import compress
from mmkcr.distillation import DistilOptions, distil, run
from mmkcr.distillation.augmentation import augment
from mmkcr.distillation.hook import rate_at
from mmkcr.distillation.options import read_length

CONFIGS = Path(__file__).parents[2] / 'configs/kcr'


def features(model, images):
    return model.forward_features(images)


def pair():
    """A small timm ViT, a smaller copy of it, and images."""
    return copy.deepcopy(_pair())


@functools.cache
def _pair():
    torch.manual_seed(0)
    dense = timm.create_model('vit_tiny_patch16_224', img_size=32, num_classes=0, depth=3,
                              embed_dim=48).eval()
    images = torch.randn(24, 3, 32, 32)
    slim = compress(dense, images, '60%', input_shape=(3, 32, 32), forward=features,
                    progress=False).model
    return slim, dense, images


def perturb(network):
    """Spoil what the refit found, so that there is something to learn."""
    with torch.no_grad():
        for value in network.parameters():
            if value.ndim < 2:
                value.add_(torch.randn_like(value), alpha=0.1)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(),
                                                 other.state_dict().values(), strict=True))


def test_never_worse_with_an_absurd_rate():
    slim, dense, images = pair()
    found = distil(slim, dense, images, 4, features, rate=10., comparisons=4)
    assert found.best == 0 and found.errors[4] > found.errors[0]
    assert same(found.model, slim)


def test_it_learns_on_images_that_it_did_not_see():
    slim, dense, images = pair()
    perturb(slim)
    found = distil(slim, dense, images[4:], 30, features, held_out=images[:4], augment=False)
    assert found.best > 0 and found.errors[found.best] < found.errors[0]
    assert not same(found.model, slim)


class Kill(Hook):
    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter == 6:
            raise KeyboardInterrupt


def test_killed_and_resumed_as_unbroken(tmp_path, monkeypatch):
    slim, dense, images = pair()
    options = dict(comparisons=5, batch_size=4)
    unbroken = distil(slim, dense, images, 10, features, work_dir=tmp_path / 'a', **options)
    runner = run.build_runner

    def killed(*args):
        found = runner(*args)
        found.register_hook(Kill())
        return found

    monkeypatch.setattr(run, 'build_runner', killed)
    with pytest.raises(KeyboardInterrupt):
        distil(slim, dense, images, 10, features, work_dir=tmp_path / 'b', **options)
    monkeypatch.setattr(run, 'build_runner', runner)
    resumed = distil(slim, dense, images, 10, features, work_dir=tmp_path / 'b', **options)
    assert resumed.errors == unbroken.errors and resumed.best == unbroken.best
    assert same(resumed.model, unbroken.model)
    last = [torch.load(tmp_path / name / 'iter_10.pth', weights_only=False)['state_dict']
            for name in 'ab']
    assert all(torch.equal(value, last[1][key]) for key, value in last[0].items())


def run_rank(rank, folder, port):
    """What one of two processes does."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE='2', MASTER_ADDR='127.0.0.1',
                      MASTER_PORT=str(port))
    distil(*pair(), 4, features, work_dir=folder, batch_size=4, comparisons=2)


def test_two_processes_are_as_one_that_accumulates(tmp_path):
    one = distil(*pair(), 4, features, work_dir=tmp_path / 'one', batch_size=4, comparisons=2,
                 accumulate=2)
    start_processes(run_rank, (str(tmp_path / 'two'), 20000 + os.getpid() % 20000), 2,
                    start_method='fork')
    weights = [torch.load(tmp_path / name, weights_only=False)['state_dict']
               for name in ('one/iter_8.pth', 'two/iter_4.pth')]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, atol=1e-6, rtol=1e-4)
    assert one.steps == 4


#: Of the hosts, but the last; imported there alone, as `transformers` 5 breaks mmpretrain's models.
FRAMEWORKS = dict(
    classifier=('digits/kcr-dense_vit-mini_1xb64_digits', 32),
    segmentor=('segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes', 64),
    detector=('detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes', 64),
    transformers=(None, 64))


@pytest.mark.parametrize('name, size', FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_networks_of_the_frameworks(name, size):
    torch.manual_seed(0)
    images, forward = torch.randn(8, 3, size, size), None
    if name:
        from mmkcr.apis.compress_files import task_outputs as forward
        from mmkcr.engine.build import build_model, load_config
        dense = build_model(load_config(CONFIGS / f'{name}.py'))
        images = [dict(inputs=batch) for batch in images.split(2)]
    else:
        transformers = pytest.importorskip('transformers')
        dense = transformers.Dinov2Model(transformers.Dinov2Config(
            image_size=64, patch_size=16, hidden_size=48, num_hidden_layers=3,
            num_attention_heads=3))
    dense.eval()
    slim = compress(dense, images, '80%', input_shape=(3, size, size), forward=forward,
                    part=name and 'backbone', progress=False).model
    perturb(getattr(slim, 'backbone', slim))
    found = distil(slim, dense, images, 8, forward, held_out=images[:2],
                   logits='digits/' in str(name), comparisons=2)
    assert found.best > 0
    assert {name: value.shape for name, value in found.model.state_dict().items()} == \
        {name: value.shape for name, value in slim.state_dict().items()}


def test_lengths():
    for length, steps in {'30min': 1800., '2h': 7200., '90s': 90., '2000': 2000, 7: 7}.items():
        assert read_length(length) == steps and type(read_length(length)) is type(steps)
    for other in ('', '0', '-3', '1.5', '2 days', 'min'):
        with pytest.raises(ValueError, match='expected a number of steps or a time'):
            read_length(other)


@pytest.mark.parametrize('count, length, message', [
    (24, '0.0001s', 'expected a time in which a step of'),
    (1, 2, 'expected at least two images or batches to distil')])
def test_too_little_time_or_images(count, length, message):
    slim, dense, images = pair()
    with pytest.raises(ValueError, match=message):
        distil(slim, dense, images[:count], length, features)


def test_a_time_behind_a_number_of_steps_is_measured(tmp_path):
    slim, dense, images = pair()
    distil(slim, dense, images, 2, features, work_dir=tmp_path)
    with pytest.raises(ValueError, match='expected a time in which a step of'):
        distil(slim, dense, images, '0.0001s', features, work_dir=tmp_path)


def test_the_rate_rises_and_falls():
    settings = DistilOptions()
    found = [rate_at(step, 100, settings) for step in range(100)]
    assert 0 < found[0] < found[5] < max(found) <= settings.rate
    assert max(found) == max(found[9:11]) and 0 < found[-1] < 0.01 * settings.rate


@pytest.mark.parametrize('power', [-8, 8])
def test_other_scales_of_the_same_function_learn_the_same(power):
    """As of massive hidden units: weights into a ReLU times 2^power, those behind it over it."""
    torch.manual_seed(0)
    dense, images = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)), \
        torch.randn(12, 3, 8, 8)
    slim = copy.deepcopy(dense)
    perturb(slim)
    other = copy.deepcopy(slim)
    with torch.no_grad():
        other[0].weight *= 2.**power
        other[0].bias *= 2.**power
        other[2].weight /= 2.**power
    one, two = (distil(network, dense, images, 8, comparisons=4, rate=1e-2, batch_size=4)
                for network in (slim, other))
    assert one.errors[8] < 0.9 * one.errors[0]
    assert two.errors == pytest.approx(one.errors, rel=1e-3)


def test_a_position_has_one_augmentation():
    images = torch.randn(3, 3, 16, 16)
    one, other, third = (augment(images, torch.Generator().manual_seed(seed))
                         for seed in (1, 1, 2))
    assert torch.equal(one, other) and not torch.equal(one, third)
    batch = augment(dict(inputs=images, data_samples=[1]), torch.Generator())
    assert batch['data_samples'] == [1] and batch['inputs'].shape == images.shape
    assert augment('text', torch.Generator()) == 'text'
