"""Damaged and forged files, and what reading one may do.

A file that was changed is refused in one sentence, or what is loaded is what the file says. No code
runs, and it takes less than a gigabyte and five seconds.
"""

import copy
import functools
import io
import json
import os
import pickle
import random
import resource
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

import torch
from mmengine.logging import HistoryBuffer

import mmkcr.models  # noqa: F401
from mmkcr.core import Structure
from mmkcr.registry import MODELS
from mmkcr.safe_load import read_checkpoint

SECONDS, BYTES = 5., 2**30
BACKBONE = dict(type='mmkcr.KCRVisionTransformer', img_size=16, patch_size=8,
                out_type='avg_featmap', arch=dict(
                    embed_dims=8, num_layers=2, num_heads=2, feedforward_channels=16))
#: What no reading does (sys.addaudithook).
FORBIDDEN = ('os.system', 'os.exec', 'os.fork', 'os.mkdir', 'os.remove', 'os.rename', 'os.rmdir',
             'os.putenv', 'shutil.rmtree', 'socket.connect', 'subprocess.Popen')
CALLS = ((os.mkdir, ('trap', )), (os.system, ('mkdir trap', )), (eval, ('__import__("os")', )),
         (exec, ('import os', )), (getattr, (HistoryBuffer, '__init__')), (open, ('trap', 'w')),
         (pickle.loads, (b'', )), (__import__, ('os', )))
VALUES = (-1, 0, 1, 2.5, 1e30, 5 * 10**9, 10**30, True, False, None, '', 'x', [], {}, [0], [-1],
          [10**12], [1.5], ['0'], {'total': 1}, 'mmkcr.KCRSwinTransformer', 2**63)

events = []
watching = [False]


def _watch(event, args):
    if watching[0] and event in FORBIDDEN:
        events.append(event)


@functools.cache
def watch():
    """See every event of this process from now on, which cannot be undone and takes time."""
    sys.addaudithook(_watch)


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function, args):
        self.reduced = function, args

    def __reduce__(self):
        return self.reduced


def good_structure():
    """The text of a structure file, and its backbone's sites."""
    model = MODELS.build(copy.deepcopy(BACKBONE))
    space = model.search_space
    structure = space.structure_for({name: torch.arange(0, total, 2)
                                     for name, total in space.totals().items()})
    structure.macs = dict(dense=100, subnet=60, input_shape=[3, 16, 16])
    structure.params = dict(dense=10, subnet=6)
    structure.provenance = dict(config='a.py', seed=3, versions=dict(torch='2'))
    return structure.dumps()


def good_checkpoint():
    """The bytes of a checkpoint as a run writes it."""
    torch.manual_seed(0)
    content = dict(
        meta=dict(epoch=1, iter=10, seed=3, cfg="model = dict(type='A')", dataset_meta=dict(
            classes=('a', 'b'))),
        state_dict=MODELS.build(copy.deepcopy(BACKBONE)).state_dict(),
        message_hub=dict(log_scalars={'train/loss': HistoryBuffer([1., 2.], [1, 1])}))
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


# ---- mutations ----------------------------------------------------------------------------------


def mutate_bytes(content, draw):
    """Some bytes are changed, removed, doubled or cut off."""
    content = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if not content:
            break
        at = draw.randrange(len(content))
        span = slice(at, at + draw.choice((1, 1, 4, 64, 1024)))
        kind = draw.randrange(5)
        if kind == 0:
            content[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content[span] = bytes(draw.randrange(256) for _ in content[span])
        elif kind == 2:
            del content[span]
        elif kind == 3:
            content[at:at] = content[span]
        else:
            del content[at:]
    return bytes(content)


def mutate_structure(text, seed):
    """A structure file that was edited badly, damaged or forged."""
    draw = random.Random(f'structure {seed}')
    if draw.random() < 0.3:
        return mutate_bytes(text.encode(), draw)
    data = json.loads(text)
    for _ in range(draw.choice((1, 1, 2, 4))):
        edit(data, draw)
    text = json.dumps(data)
    special = draw.random()
    if special < 0.05:  # the same key twice
        text = text.replace('"total"', '"kept": 1, "total"', 1)
    elif special < 0.1:
        depth = draw.choice((100, 1000, 100000))
        text = text.replace('[', '[' * depth, 1).replace(']', ']' * depth, 1)
    elif special < 0.15:
        text = text.replace('16', draw.choice(('NaN', 'Infinity', '1e400', '9' * 5000)), 1)
    return text.encode()


def edit(data, draw):
    """Change one value or key anywhere."""
    places = []
    waiting = [data]
    while waiting:
        node = waiting.pop()
        keys = list(node) if isinstance(node, dict) else range(len(node))
        places += [(node, key) for key in keys]
        waiting += [node[key] for key in keys if isinstance(node[key], (dict, list))]
    if not places:
        return
    node, key = draw.choice(places)
    kind = draw.randrange(4)
    if kind == 0:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[draw.choice(('x', f'{key} ', str(key).upper(), 'total', 'macs'))] = node.pop(key)
    elif kind == 2:
        other, place = draw.choice(places)
        if place in other if isinstance(other, dict) else place < len(other):
            node[key] = copy.deepcopy(other[place])
    else:
        node[key] = copy.deepcopy(draw.choice(VALUES))


def mutate_checkpoint(content, seed):
    """A checkpoint that was damaged, also behind its checksums, or forged."""
    draw = random.Random(f'checkpoint {seed}')
    kind = draw.random()
    if kind < 0.4:
        return mutate_bytes(content, draw)
    if kind < 0.8:  # with checksums that fit
        source, target = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
        victim = draw.choice([name for name in source.namelist() if draw.random() < 0.2]
                             or [name for name in source.namelist() if name.endswith('.pkl')])
        with zipfile.ZipFile(target, 'w') as archive:
            for name in source.namelist():
                data = source.read(name)
                archive.writestr(name, mutate_bytes(data, draw) if name == victim else data)
        return target.getvalue()
    loaded = torch.load(io.BytesIO(content), weights_only=False)
    value = Call(*draw.choice(CALLS)) if kind < 0.95 else draw.choice(VALUES)
    places = [loaded, loaded['meta'], loaded['state_dict'], loaded['message_hub']]
    place = draw.choice(places)
    place[draw.choice([*place, 'new'])] = value
    buffer = io.BytesIO()
    torch.save(loaded, buffer, _use_new_zipfile_serialization=draw.random() < 0.7)
    return buffer.getvalue()


# ---- what reading may do ------------------------------------------------------------------------


def read_structure(path):
    """Load, compare with what the file says, and build."""
    structure = Structure.load(path)
    said = json.loads(Path(path).read_text(encoding='utf8'))
    for name, site in said['sites'].items():
        if isinstance(site['kept'], int):
            site['kept'] = list(range(site['kept']))
        if site.get('operator', 0) is None:
            del site['operator']
        assert structure.sites[name].to_dict() == site, name
    assert {**structure.to_dict(), 'sites': 0} == {
        **dict(method='', macs={}, params={}, provenance={}), **said, 'sites': 0}
    model = MODELS.build(dict(copy.deepcopy(BACKBONE), structure=str(path)))
    for name, size in structure.sizes().items():
        assert model.search_space.sites[name].present == size, name


def read_weights(path):
    """Load, and use every tensor."""
    for value in read_checkpoint(path)['state_dict'].values():
        assert value.numel() * value.element_size() <= BYTES
        value.clone()


def judge(path, read):
    """Read a file: ``'refused'``, ``'loaded'``, or an AssertionError with what else it did."""
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    watch()
    events.clear()
    watching[0] = True
    try:
        read(str(path))
        verdict = 'loaded'
    except ValueError as error:
        assert '\n' not in str(error), f'more than a line: {error}'
        verdict = 'refused'
    finally:
        watching[0] = False
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    spent = time.process_time() - began
    assert not events, f'it did {events}'
    assert grown < BYTES, f'it took {grown} bytes'
    assert spent < SECONDS, f'it took {spent:.1f} s'
    return verdict


def run(number, folder):
    """Read that many changed files, half of each sort; one is kept for every failure.

    Gives counts of ``refused`` and ``loaded`` by sort, and ``wrong``: what failed, by file.
    """
    sorts = dict(structure=(good_structure(), mutate_structure, read_structure, '.json'),
                 checkpoint=(good_checkpoint(), mutate_checkpoint, read_weights, '.pth'))
    counts, wrong = {sort: Counter() for sort in sorts}, {}
    for index in range(number):
        sort = sorted(sorts)[index % 2]
        good, mutate, read, suffix = sorts[sort]
        path = Path(folder, f'{sort}_{index}{suffix}')
        path.write_bytes(mutate(good, index))
        try:
            counts[sort][judge(path, read)] += 1
            path.unlink()
        except Exception as error:
            wrong[path.name] = f'{type(error).__name__}: {" ".join(str(error).split()):.300}'
    return dict(**{sort: dict(found) for sort, found in counts.items()}, wrong=wrong)
