"""Folders that this package writes, each with one file changed, read back.

A change is refused in one sentence, or told, or it has no effect: the network computes the same,
and all numbers that are recorded are the same. Anything else is silent, and wrong.

Another kind of folder is another entry of :data:`KINDS`.
"""

import copy
import functools
import io
import json
import logging
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mutations import edit, mutate_bytes
from PIL import Image
from safetensors.torch import load, save
from timm.layers import Mlp
from torch import nn

import mmkcr
from mmkcr.apis.compress_files import FileOptions, build_task, compress_files
from mmkcr.closed_form.compression import compress_network
from mmkcr.closed_form.options import CompressOptions
from mmkcr.closed_form.progress import PROFILES, CompressProgress
from mmkcr.core import Structure
from mmkcr.core.forward import flat_tensors
from mmkcr.deploy.tensor_model import TensorModel
from mmkcr.distillation import distil
from mmkcr.distillation.given import network_digest
from mmkcr.engine.build import build_model, find_weights, load_config, load_weights

CONFIG = Path(__file__).parents[1] / 'data/kcr-dense_vit-mini_1xb64_digits.py'
#: Two blocks, as a folder is read thousands of times.
SMALL = {'model.backbone.arch.num_layers': 2}
#: What a wrong file is refused by.
REFUSALS = ValueError, FileNotFoundError


class Kind(NamedTuple):
    """A kind of folder.

    Args:
        make (Callable): ``make(folder, seed)`` writes a good one; seeds give different ones.
        read (Callable): ``read(folder)`` reads it back, and gives what was computed and what was
            recorded, by name: tensors, or plain values of JSON. It may change the folder.
        files (tuple[str]): Files that are changed, by path below the folder.
        remade (bool): Whether what is read must be the same also where something is told, as of
            progress, which is made anew. Defaults to False.
    """

    make: Callable[[Path, int], None]
    read: Callable[[Path], dict[str, Any]]
    files: tuple[str, ...]
    remade: bool = False


def outputs(model, shape):
    """What a network computes of two images."""
    image = torch.rand(2, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return flat_tensors(TensorModel(model.eval() or model)(image))


def write_images(folder, seed, count=16):
    """Images of noise for a calibration; gives their folder."""
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)
    folder.mkdir(parents=True)
    for index, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f'{index}.png')
    return str(folder)


def random_checkpoint(folder):
    """A checkpoint of the dense network with random weights; gives its path."""
    torch.manual_seed(0)
    model = build_model(load_config(CONFIG, SMALL))
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(epoch=1)), folder / 'dense.pth')
    return str(folder / 'dense.pth')


def make_compressed(folder, seed):
    """The folder of ``mmkcr compress``: of equal sizes, but of other units for another seed."""
    with tempfile.TemporaryDirectory() as beside:
        task = build_task(FileOptions(
            config=CONFIG, checkpoint=random_checkpoint(Path(beside)), cfg_options=SMALL,
            calibration=write_images(Path(beside, 'images'), seed), images=16, target='85%',
            sites=['mlp_channels'], uniform=True, progress=False))
        compress_files(task, task.options, folder)


@functools.lru_cache(1)
def built_model(folder, structure):
    """The network of a folder's config; not built again while the structure is the same."""
    return build_model(load_config(folder / 'config.py'))


def read_compressed(folder):
    """The network of a folder's config and weights, as ``mmkcr test`` and ``export`` build it."""
    model = copy.deepcopy(built_model(folder, (folder / 'structure.json').read_bytes()))
    meta = load_weights(model, folder / 'subnet.pth')['meta']
    return dict(outputs=outputs(model, (3, 32, 32)), meta=meta,
                structure=Structure.load(folder / 'structure.json').to_dict())


def make_saved(folder, seed):
    """The folder of ``mmkcr.save``, of a network of timm."""
    import timm
    torch.manual_seed(seed)
    model = timm.create_model('test_vit', img_size=64, num_classes=5)
    mmkcr.save(mmkcr.compress(model, torch.randn(8, 3, 64, 64), '60%', input_shape=(3, 64, 64),
                              progress=False), folder)


def read_saved(folder):
    """The network that ``mmkcr.load`` gives, and what the folder records of it."""
    model = mmkcr.load(folder)
    return dict(outputs=outputs(model, (3, 64, 64)),
                structure=Structure.load(folder / 'structure.json').to_dict(),
                report=json.loads((folder / 'report.json').read_text()))


def make_saved_task(folder, seed):
    """The folder of ``mmkcr.save``, of a task model that carries its config."""
    torch.manual_seed(seed)
    config = load_config(CONFIG, SMALL)
    model = build_model(config)
    result = mmkcr.compress(model, torch.randn(8, 3, 32, 32), '85%', ['mlp_channels'],
                            input_shape=(3, 32, 32), uniform=True, progress=False)
    result.model.cfg = config
    mmkcr.save(result, folder)


def read_saved_task(folder):
    """The network as ``mmkcr test`` and ``export`` build it, and what the folder records of it."""
    config = load_config(folder / 'config.py')
    model = build_model(config)
    load_weights(model, find_weights(config, None, 'config.py'))
    return dict(outputs=outputs(model, (3, 32, 32)),
                structure=Structure.load(folder / 'structure.json').to_dict(),
                report=json.loads((folder / 'report.json').read_text()))


def small_network(seed):
    """A network of two MLPs, and images that it takes."""
    torch.manual_seed(seed)
    mlps = [Mlp(8, 16, use_conv=True) for _ in range(2)]
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), *mlps), torch.randn(6, 3, 16, 16)


def go_on_compressing(folder, seed=0):
    """What a compression gives that goes on with a folder's profiles and refitted blocks."""
    network, images = small_network(seed)
    key = dict(network=network_digest(network))
    progress = CompressProgress(folder / '.progress', dict(key, target='60%'),
                                CompressProgress(folder / PROFILES, key))
    options = CompressOptions(target='60%', input_shape=(3, 16, 16), divisor=1, progress=False)
    found = compress_network(network, images, options, done=progress)
    return dict(weights=found.model.state_dict(), structure=found.structure.to_dict())


def go_on_distilling(folder, seed=0):
    """What a distillation gives that goes on with a folder's state, which is that of its end."""
    network, images = small_network(seed)
    student = copy.deepcopy(network)
    with torch.no_grad():
        for value in student.parameters():
            value += 0.1 * torch.randn_like(value)
    found = distil(student, network, images, 3, work_dir=folder, comparisons=1, batch_size=4)
    return dict(weights=found.model.state_dict(), errors=found.errors)


KINDS = dict(
    compressed=Kind(make_compressed, read_compressed, ('structure.json', 'subnet.pth')),
    saved=Kind(make_saved, read_saved, (
        'config.json', 'model.safetensors', 'report.json', 'structure.json')),
    saved_task=Kind(make_saved_task, read_saved_task, (
        'config.py', 'model.safetensors', 'report.json', 'structure.json')),
    compressing=Kind(go_on_compressing, go_on_compressing, (
        '.profiles/key.json', '.profiles/profiles.pth', '.progress/key.json', '.progress/1.pth',
        '.progress/2.pth'), True),
    distilling=Kind(go_on_distilling, go_on_distilling, (
        '.distil/key.json', '.distil/state.pth'), True))


# ---- mutations ----------------------------------------------------------------------------------


def mutate(name, content, other, draw):
    """The bytes of a file, damaged, edited, or those of another call."""
    if draw.random() < 0.1:
        return other
    change = {'.json': mutate_json, '.safetensors': mutate_safetensors,
              '.pth': mutate_torch}.get(Path(name).suffix)
    if change is None or draw.random() < 0.4:
        return mutate_bytes(content, draw)
    return change(content, draw)


def mutate_json(content, draw):
    """One to four values or keys are others."""
    data = json.loads(content)
    for _ in range(draw.choice((1, 1, 2, 4))):
        edit(data, draw)
    return json.dumps(data).encode()


def mutate_safetensors(content, draw):
    """A tensor is changed, or two change places; the file itself is in order."""
    state = load(content)
    change_tensors(state, draw)
    return save(state)


def mutate_torch(content, draw):
    """A weight or what is beside the weights is changed, with checksums that fit."""
    loaded = torch.load(io.BytesIO(content), weights_only=True)
    if 'state_dict' not in loaded:
        return mutate_progress(loaded, content, draw)
    state = loaded['state_dict']
    digests = [name for name in state if name.endswith('kept_units')]
    if draw.random() < 0.1:
        state[digests[0]] = draw.choice((state[digests[0]] ^ 1, torch.zeros(2), torch.tensor(0.5)))
    elif draw.random() < 0.1:
        del state[digests[0]]
    elif draw.random() < 0.5:
        change_tensors(state, draw)
    else:
        edit(loaded['meta'], draw)
    buffer = io.BytesIO()
    torch.save(loaded, buffer)
    return buffer.getvalue()


def mutate_progress(loaded, content, draw):
    """A tensor of what is finished is another; the file is in order, with its former digest."""
    groups = [(node, {key: value for key, value in node.items() if torch.is_tensor(value)})
              for node in nodes(loaded)]
    node, tensors = draw.choice([(node, tensors) for node, tensors in groups if tensors])
    change_tensors(tensors, draw)
    node.update(tensors)
    buffer = io.BytesIO()
    torch.save(loaded, buffer)
    return buffer.getvalue() + content[-32:]


def nodes(tree):
    """All dicts in a tree of dicts and lists; lists become dicts, in place."""
    for key, value in list(tree.items()):
        if isinstance(value, list):
            tree[key] = value = dict(enumerate(value))
        if isinstance(value, dict):
            yield from nodes(value)
    yield tree


def change_tensors(state, draw):
    """Flip a bit of a tensor, swap two of one shape, or give one another's name."""
    name = draw.choice(sorted(state))
    alike = [other for other in sorted(state) if other != name
             and state[other].shape == state[name].shape]
    if alike and draw.random() < 0.5:
        other = draw.choice(alike)
        state[name], state[other] = state[other], state[name]
    else:
        value = state[name] = state[name].clone()
        value.view(-1).view(torch.uint8)[draw.randrange(value.nbytes)] ^= 1 << draw.randrange(8)


# ---- judging ------------------------------------------------------------------------------------


def equal(one, other):
    """Whether two values, tensors in lists and dicts among them, are the same bit for bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one.nan_to_num(7.), other.nan_to_num(7.))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def read_aloud(read, folder):
    """What reading a folder gives, and all that is said while it is read."""
    said = []

    class Listener(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    listener, logger = Listener(), logging.getLogger('mmkcr')
    logger.addHandler(listener)
    propagate, logger.propagate = logger.propagate, False
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter('always')
            found = read(folder)
    finally:
        logger.removeHandler(listener)
        logger.propagate = propagate
    return found, said + [str(warning.message) for warning in caught]


def judge(kind, folder, expected, usual):
    """``'refused'``, ``'told'`` or ``'same'``; an AssertionError with what else happened.

    Args:
        kind (Kind): The folder's kind.
        folder (Path): With a changed file.
        expected (dict): What reading the good folder gives.
        usual (list[str]): What is said when the good folder is read.
    """
    try:
        found, said = read_aloud(kind.read, folder)
    except REFUSALS as error:
        assert '\n' not in str(error), f'more than a line: {error}'
        return 'refused'
    told = bool(set(said) - set(usual))
    other = [name for name in expected if not equal(found[name], expected[name])]
    assert not other or told and not kind.remade, f'without a word another {", ".join(other)}'
    return 'told' if told else 'same'


def run(number, folder, names=tuple(KINDS), say=lambda counts: None):
    """Change every file of every kind of folder so many times; see the module.

    Args:
        number (int): Changes of each file.
        folder (Path): To work in; a changed file of every failure is kept there.
        names (Sequence[str]): Of :data:`KINDS`.
        say (Callable): Gets the counts after every file.

    Returns:
        dict: Counts of ``refused``, ``told`` and ``same`` by kind and file, and ``wrong``: what
        was silent or failed, by kind, file and number.
    """
    counts, wrong = {}, {}
    for name in names:
        kind, good, other = KINDS[name], folder / name, folder / f'{name}_other'
        kind.make(good, 0)
        kind.make(other, 1)
        changed = folder / f'{name}_changed'
        shutil.copytree(good, changed)
        expected, usual = read_aloud(kind.read, changed)
        for file in kind.files:
            content, others = ((one / file).read_bytes() for one in (good, other))
            found = counts[f'{name}/{file}'] = Counter()
            for index in range(number):
                shutil.rmtree(changed)
                shutil.copytree(good, changed)
                mutated = mutate(file, content, others, random.Random(f'{name} {file} {index}'))
                (changed / file).write_bytes(mutated)
                try:
                    found[judge(kind, changed, expected, usual)] += 1
                except Exception as error:
                    found['wrong'] += 1
                    key = f'{name}/{file} {index}'
                    wrong[key] = f'{type(error).__name__}: {" ".join(str(error).split()):.300}'
                    kept = folder / f'wrong_{key.replace("/", "_").replace(" ", "_")}'
                    kept.write_bytes(mutated)
            say(dict(counts))
        shutil.rmtree(changed)
    return dict(counts={name: dict(found) for name, found in counts.items()}, wrong=wrong)
