"""Distillation without labels: never worse, exact resume, several processes, all frameworks."""

import copy
import functools
import os
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.multiprocessing import start_processes

from long_form import every_nth
from mmkcr.closed_form.compression import compress
from mmkcr.core import Progress
from mmkcr.distillation import DistilOptions, augmentation, check_length, distil
from mmkcr.distillation.augmentation import augment
from mmkcr.distillation.model import DistilModel
from mmkcr.distillation.options import read_length
from mmkcr.distillation.training import Training, rate_at

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


def kill_behind(step, monkeypatch):
    """Have a run be killed before a step."""
    take = Training.take_step

    def killed(self, number, steps):
        if number == step:
            raise KeyboardInterrupt
        return take(self, number, steps)

    monkeypatch.setattr(Training, 'take_step', killed)


def state_of(folder):
    """The state that a run with a work directory keeps."""
    return torch.load(folder / '.distil/state.pth', weights_only=True)


def test_killed_and_resumed_as_unbroken(tmp_path, monkeypatch):
    slim, dense, images = pair()
    options = dict(comparisons=5, batch_size=4)
    unbroken = distil(slim, dense, images, 10, features, work_dir=tmp_path / 'a', **options)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_behind(7, patch)
        distil(slim, dense, images, 10, features, work_dir=tmp_path / 'b', **options)
    with monkeypatch.context() as patch:
        kill_behind(5, patch)  # that step is not taken again
        resumed = distil(slim, dense, images, 10, features, work_dir=tmp_path / 'b', **options)
    assert resumed.errors == unbroken.errors and resumed.best == unbroken.best
    assert same(resumed.model, unbroken.model)
    for name in ('student', 'average', 'best'):
        assert all(map(torch.equal, *(state_of(tmp_path / run)[name] for run in 'ab')))


def other_weights(network):
    perturb(network)
    return network


OTHERS = dict(
    student=lambda call: dict(call, student=other_weights(call['student'])),
    teacher=lambda call: dict(call, teacher=other_weights(call['teacher'])),
    images=lambda call: dict(call, images=call['images'].flip(0)),
    held_out=lambda call: dict(call, held_out=call['images'][:2]),
    rate=lambda call: dict(call, rate=1e-2), length=lambda call: dict(call, length=6),
    frozen=lambda call: dict(call, student=partly_frozen(call['student'])),
    forward=lambda call: dict(call, forward=None))


def partly_frozen(network):
    network.blocks[0].requires_grad_(False)
    return network


def four_steps():
    """Arguments of a distillation."""
    slim, dense, images = pair()
    return dict(student=slim, teacher=dense, images=images, length=4, forward=features,
                comparisons=2)


@pytest.fixture(scope='module')
def distilled(tmp_path_factory):
    """The folder of a distillation that has ended, which tests copy."""
    folder = tmp_path_factory.mktemp('distilled')
    distil(**four_steps(), work_dir=folder)
    return folder


@pytest.mark.parametrize('change', OTHERS.values(), ids=list(OTHERS))
def test_another_distillation_begins_anew(change, distilled, tmp_path, caplog):
    """With the numbers that it has without the first one's folder; it says what is other."""
    shutil.copytree(distilled, tmp_path, dirs_exist_ok=True)
    caplog.clear()
    torch.manual_seed(1)
    other = change(four_steps())
    found = distil(**other, work_dir=tmp_path)
    assert 'holds work of another call' in caplog.text
    expected = distil(**other)
    assert found.errors == expected.errors and same(found.model, expected.model)


def damages(content):
    """Kinds of damage to the bytes of a file; None is a file that is gone."""
    yield None
    for share in (0, 0.3, 0.999):
        yield content[:int(share * len(content))]
    for share in (0.01, 0.3, 0.6, 0.9, 0.9999):
        at = int(share * len(content))
        yield content[:at] + bytes([content[at] ^ 4]) + content[at + 1:]


@pytest.mark.parametrize('name', ['state.pth', 'key.json'])
def test_damaged_progress_is_made_anew(name, tmp_path):
    """A finished run in whose folder a file is damaged gives the same result when repeated."""
    def run():
        slim, dense, images = pair()
        return distil(slim, dense, images, 2, features, work_dir=tmp_path, comparisons=1)

    expected, path = run(), tmp_path / '.distil' / name
    content = path.read_bytes()
    for damaged in damages(content):
        path.unlink() if damaged is None else path.write_bytes(damaged)
        found = run()
        assert found.errors == expected.errors and same(found.model, expected.model)
        assert name != 'key.json' or path.read_bytes() == content


def test_what_a_killed_run_half_wrote_goes(tmp_path):
    slim, dense, images = pair()
    folder = tmp_path / '.distil'
    folder.mkdir()
    left = f'.part-{socket.gethostname()}-{ended_process()}-0-state.pth'
    (folder / left).write_bytes(b'half')
    distil(slim, dense, images, 2, features, work_dir=tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ['key.json', 'state.pth']


def ended_process():
    process = subprocess.Popen(['true'])
    process.wait()
    return process.pid


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
    one_state, two_states = (state_of(tmp_path / name) for name in ('one', 'two'))
    for name in ('student', 'average'):
        for value, other in zip(one_state[name], two_states[name], strict=True):
            torch.testing.assert_close(other, value, atol=1e-6, rtol=1e-4)
    assert one.steps == 4


#: Of the hosts, but the last; imported there alone, as `transformers` 5 breaks mmpretrain's models.
FRAMEWORKS = dict(
    classifier=('digits/kcr-dense_vit-mini_1xb64_digits', 32),
    segmentor=('segmentation/kcr-upernet_swin-mini_dense_1xb8_digit-scenes', 64),
    detector=('detection/kcr-mask-rcnn_swin-mini_dense_1xb8_digit-scenes', 64),
    transformers=(None, 64))


@pytest.mark.parametrize('name, size', every_nth(2, FRAMEWORKS.values()),
                         ids=every_nth(2, FRAMEWORKS))
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
    (24, '0.0001s', 'expected a time in which a step of .* found 0.0001 s'),
    (1, 2, 'expected at least two images or batches to distil'),
    (1, '2s', 'expected at least two images or batches to distil')])
def test_too_little_time_or_images(count, length, message):
    slim, dense, images = pair()
    with pytest.raises(ValueError, match=message):
        distil(slim, dense, images[:count], length, features)
    with pytest.raises(ValueError, match=message):
        check_length(dense, images[:count], length, features)


def frozen(network):
    return network.requires_grad_(False)


def with_nan(network):
    next(network.parameters()).data[0] = torch.nan
    return network


@pytest.mark.parametrize('change, message', [
    (dict(student=nn.Module.half), 'expected a student of .* torch.float16, in which most steps'),
    (dict(student=nn.Module.bfloat16, teacher=nn.Module.bfloat16), 'found weights of torch.bfloat'),
    (dict(teacher=nn.Module.double), 'expected a teacher of torch.float32, .* torch.float64'),
    (dict(teacher=lambda network: network.to('meta')), 'expected a teacher with weights'),
    (dict(student=frozen), 'expected a student with parameters to train, found all of them frozen'),
    (dict(student=with_nan), 'expected finite weights of the student')])
def test_networks_that_cannot_be_distilled(change, message):
    slim, dense, images = pair()
    student, teacher = (change.get(role, nn.Identity())(network)
                        for role, network in (('student', slim), ('teacher', dense)))
    with pytest.raises(ValueError, match=message):
        distil(student, teacher, images, 2, features)


@pytest.mark.parametrize('value', [torch.inf, torch.nan])
@pytest.mark.parametrize('where, what', [(0, 'images'), (-1, 'held-out images')])
def test_images_that_are_not_finite(where, what, value):
    slim, dense, images = pair()
    images[where, 0, 0, 0] = value
    with pytest.raises(ValueError, match=f'expected finite {what}, found `nan` or `inf` in number'):
        distil(slim, dense, images, 2, features)


class FromFiles(Sequence):
    """Batches that are read when they are needed, so that nobody looks at them before."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, place):
        return FromFiles(self.batches[place]) if isinstance(place, slice) else self.batches[place]

    def digest(self):
        return 'a'


def test_it_ends_at_the_step_whose_loss_is_not_finite(caplog):
    """Of a rate, of an image: a sentence names the step, and the result is the best so far."""
    slim, dense, images = pair()
    found = distil(slim, dense, images, 40, features, rate=1e30)
    step = int(re.search(r'ends at step (\d+) of 40, as its (?:loss|distance)', caplog.text)[1])
    assert step < 40 and '`rate` than 1e+30' in caplog.text
    assert found.best == 0 and same(found.model, slim)
    caplog.clear()
    images[4] = torch.inf
    found = distil(slim, dense, FromFiles(images.split(1)), 60, features, held_out=images[:2],
                   comparisons=60)
    step = int(re.search(r'ends at step (\d+) of 60, as its loss is nan', caplog.text)[1])
    assert max(found.errors) == step - 1 < 24 and f'step {found.best}.' in caplog.text
    with pytest.raises(ValueError, match='expected finite outputs of the teacher on held-out im'):
        distil(slim, dense, FromFiles(images.split(1)), 2, features,
               held_out=FromFiles(images[4:6].split(1)))


def test_frozen_parameters_stay():
    slim, dense, images = pair()
    perturb(slim)
    slim.blocks[1].requires_grad_(False)
    flags = {name: value.requires_grad for name, value in slim.named_parameters()}
    found = distil(slim, dense, images[4:], 10, features, held_out=images[:4], augment=False)
    assert found.best > 0
    given = dict(slim.named_parameters())
    for name, value in found.model.named_parameters():
        assert value.requires_grad == flags[name] and value.grad is None
        assert torch.equal(value, given[name]) != flags[name] or not given[name].any(), name


def test_the_hosts_random_states_stay(tmp_path):
    slim, dense, images = pair()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    distil(slim, dense, images, 2, features, work_dir=tmp_path)
    check_length(dense, images, '20s', features)
    assert random.getstate() == before[0] and np.random.get_state()[1].tolist() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_it_prints_nothing_where_no_terminal_shows_a_bar(capfd):
    slim, dense, images = pair()
    distil(slim, dense, images, 12, features)
    assert capfd.readouterr() == ('', '')


class Clock:
    """Time that passes with work alone: a second for each, and three for a step's own work."""

    def __init__(self, monkeypatch):
        self.now = 0.
        for owner, name, seconds in (
                (DistilModel, 'loss', 1), (DistilModel, 'measure_distance', 4),
                (torch.optim.AdamW, 'step', 3), (Progress, 'save', 2),
                (augmentation, 'augment', 1)):
            monkeypatch.setattr(owner, name, self.timed(getattr(owner, name), seconds))
        monkeypatch.setattr(time, 'perf_counter', lambda: self.now)

    def timed(self, function, seconds):
        @functools.wraps(function)
        def run(*args, **options):
            self.now += seconds
            return function(*args, **options)
        return run


@pytest.mark.parametrize('seconds', [60, 200])
def test_a_time_counts_all_that_is_done(seconds, tmp_path, monkeypatch):
    """Augmentation, the optimizer, comparisons and files, and the measurement itself."""
    slim, dense, images = pair()
    clock = Clock(monkeypatch)
    found = distil(slim, dense, images, f'{seconds}s', features, work_dir=tmp_path, comparisons=4)
    assert seconds - 12 < clock.now <= seconds
    assert found.steps == max(found.errors) > 2


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
