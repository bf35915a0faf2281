"""Checkpoints and YAML files are data: reading one runs no code, unless the user trusts it.

MMEngine tries PyTorch's restricted unpickler and falls back to the unrestricted one, which runs
whatever a file asks for; its list of what is allowed holds ``getattr``. Importing this package
puts the readers below in the place of MMEngine's, for its own runs, inferencers and ``Pretrained``
too, and a handler of YAML files that makes plain values alone. :func:`trust_checkpoints`,
``--trust-checkpoint`` of the commands, or the environment variable ``MMKCR_TRUST_CHECKPOINT=1``
allow what MMEngine allows of checkpoints.
"""

import ast
import contextlib
import functools
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Union

import numpy as np
import torch
import yaml
from mmengine.config import Config
from mmengine.fileio import YamlHandler, register_handler
from mmengine.logging import HistoryBuffer
from mmengine.runner import checkpoint as host
from mmengine.runner.checkpoint import CheckpointLoader

ENVIRONMENT = 'MMKCR_TRUST_CHECKPOINT'
#: What a registry finds by its name; other dotted names are those of any module's functions.
_CLASS = re.compile(r'(mmkcr\.|mmengine\.|mmcv\.|mmpretrain\.|mmdet\.|mmseg\.)?[A-Za-z_]\w*')
_trusted = False


def trust_checkpoints(trust: bool = True) -> None:
    """Allow, or no longer allow, that checkpoints run code when they are read.

    Args:
        trust (bool): Whether whoever made them is trusted. Defaults to True.
    """
    global _trusted
    _trusted = trust


def is_trusted() -> bool:
    """Whether checkpoints may run code, see :func:`trust_checkpoints`."""
    return _trusted or os.environ.get(ENVIRONMENT, '0') not in ('', '0')


def read_checkpoint(path: Union[str, Path], map_location: Any = 'cpu') -> Dict[str, Any]:
    """Read a checkpoint.

    Args:
        path (str | Path): A file, a URL, or what else MMEngine reads.
        map_location (Any): See :func:`torch.load`. Defaults to ``'cpu'``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, is damaged, or would run code.
    """
    if '://' not in str(path) and not Path(path).expanduser().is_file():
        raise FileNotFoundError(f'expected a checkpoint at `{path}`, found none')
    checkpoint = CheckpointLoader.load_checkpoint(str(path), map_location, logger='silent')
    state = checkpoint.get('state_dict', checkpoint)
    tensors = isinstance(state, Mapping) and state and all(
        isinstance(name, str) and torch.is_tensor(value) for name, value in state.items())
    if not tensors:
        raise ValueError(f'expected a checkpoint with tensors by name at `{path}`, found '
                         f'{_described(state)}')
    for name, value in state.items():  # a view of few bytes may stand for any number of values
        if value.layout == torch.strided and \
                value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f'expected a checkpoint at `{path}` that stores its tensors, found '
                             f'`{name}` of shape {tuple(value.shape)} in '
                             f'{value.untyped_storage().nbytes()} bytes')
    return checkpoint


def _described(state: Any) -> str:
    if not isinstance(state, Mapping):
        return f'a `{type(state).__name__}` as its `state_dict`'
    others = [name for name, value in state.items() if not torch.is_tensor(value)]
    return f'the entry `{str(others[0]):.60}`, which is none' if others else 'no entry'


def load_from_local(filename: str, map_location: Any = None) -> Any:
    """Read a file of this machine, see :class:`mmengine.runner.checkpoint.CheckpointLoader`.

    A file that was damaged after it was written is refused: PyTorch does not compare the
    checksums that it writes.

    Args:
        filename (str): The file.
        map_location (Any): See :func:`torch.load`. Defaults to None.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It cannot be read, is damaged, or would run code.
    """
    path = Path(filename).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f'expected a checkpoint at `{filename}`, found none')
    with _refusing(filename):
        _check_archive(path)
        with torch.serialization.safe_globals([] if is_trusted() else _harmless()):
            content = torch.load(path, map_location=map_location, weights_only=not is_trusted())
    return _without_code(content, filename)


def _without_code(content: Any, filename: str) -> Any:
    """Without the text of mmcv's time that MMEngine runs when it resumes, for a warning of it.

    Raises:
        ValueError: It is no dict, as of every checkpoint.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f'expected a checkpoint with a `state_dict` at `{filename}`, found a '
                         f'`{type(content).__name__}`')
    meta = content.get('meta')
    if isinstance(meta, dict) and not is_trusted():
        meta.pop('config', None)
    return content


def load_from_http(filename: str, *args: Any, **kwargs: Any) -> Any:
    """Download a file, see :func:`mmengine.runner.checkpoint.load_from_http`."""
    return _restricted(host.load_from_http)(filename, *args, **kwargs)


def _restricted(loader: Callable) -> Callable:
    """A loader of the host that may not fall back to unrestricted unpickling."""

    @functools.wraps(loader)
    def load(filename: str, *args: Any, **kwargs: Any) -> Any:
        if is_trusted():
            return loader(filename, *args, **kwargs)
        with _refusing(filename), _forced(), torch.serialization.safe_globals(_harmless()):
            return _without_code(loader(filename, *args, **kwargs), filename)

    return load


@contextlib.contextmanager
def _forced() -> Iterator[None]:
    name = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'  # PyTorch's own, whatever a caller asks for
    before = os.environ.get(name)
    os.environ[name] = '1'
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})


@contextlib.contextmanager
def _refusing(filename: str) -> Iterator[None]:
    """One sentence for whatever pickle, zip and PyTorch raise."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        named = re.search(r'(?:GLOBAL|function|class(?:es)?|type \S+ ?|got <class) \W*([\w.]+)',
                          str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if named:
            raise ValueError(
                f'expected a checkpoint of tensors and plain values at `{filename}`, found one '
                f'that needs `{named[1]}` to be read; `--trust-checkpoint` lets it run code'
            ) from error
        text = ' '.join(str(error).split()) if isinstance(error, ValueError) else ''
        raise ValueError(f'expected a checkpoint at `{filename}`, found a file that cannot be '
                         f'read ({text or type(error).__name__})') from error


def _check_archive(path: Path) -> None:
    """Refuse an archive whose members are not what was written.

    Files in PyTorch's format of before 2020 are no archives and pass.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:  # PyTorch never compresses
                raise ValueError(f'its member `{member.filename}` is compressed')
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f'its member `{damaged}` is damaged')


def _method(owner: Any, name: str) -> Any:
    """What a log's pickle needs of ``getattr``: the statistics of a ``HistoryBuffer``."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError('Trying to call reduce for unrecognized function getattr')
    return getattr(owner, name)


@functools.lru_cache(maxsize=None)
def _harmless() -> List[Any]:
    """What checkpoints of MMEngine's runs hold beside tensors and plain values."""
    arrays = [np.ndarray, np.dtype, *{type(np.dtype(code)) for code in '?bBhHiIlLqQefdU'}]
    multiarray = np._core.multiarray
    return [slice, HistoryBuffer, *arrays, (_method, 'builtins.getattr'),
            *((getattr(multiarray, name), f'numpy.{core}.multiarray.{name}')
              for core in ('core', '_core') for name in ('_reconstruct', 'scalar'))]


def read_config_text(text: str, path: Union[str, Path]) -> Config:
    """The config that a run wrote into its checkpoint, without running it.

    Args:
        text (str): Assignments of plain values, as ``Config.pretty_text`` gives them.
        path (str | Path): The checkpoint, for the message.

    Raises:
        ValueError: There is something else in it.
    """
    if is_trusted():
        return Config.fromstring(text, '.py')
    try:
        found = {}
        for line in ast.parse(text).body:
            (target, ) = line.targets
            found[target.id] = _plain(line.value)
        return Config(found)
    except (AttributeError, KeyError, MemoryError, RecursionError, SyntaxError, TypeError,
            ValueError) as error:
        raise ValueError(f'expected a config of plain values in the checkpoint `{path}`, found '
                         f'one that is not ({type(error).__name__}); `--trust-checkpoint` lets it '
                         'run code') from error


def check_types(config: Any, path: Union[str, Path]) -> None:
    """Refuse a config from a data file whose parts name functions of any module.

    A registry imports what a dotted ``type`` names.

    Args:
        config (Any): Dicts, lists and values.
        path (str | Path): The file, for the message.

    Raises:
        ValueError: There is such a ``type``.
    """
    waiting = [config]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Mapping):
            if not is_trusted() and not _CLASS.fullmatch(str(node.get('type', 'Any'))):
                raise ValueError(f'expected registered types in `{path}`, found '
                                 f'`{str(node["type"]):.60}`, which a registry would import')
            waiting += node.values()
        elif isinstance(node, (list, tuple)):
            waiting += node


def _plain(node: ast.AST) -> Any:
    """The value of an expression of literals, lists, dicts and ``dict(...)``."""
    if isinstance(node, (ast.Call, ast.Dict)):
        if isinstance(node, ast.Dict):
            found = dict(zip(map(_plain, node.keys), map(_plain, node.values)))
        elif node.func.id == 'dict':  # also dict({'0': 1}) and dict(**{'0': 1})
            found = dict(*map(_plain, node.args))
            for word in node.keywords:
                found.update({word.arg: _plain(word.value)} if word.arg else _plain(word.value))
        else:
            raise ValueError('a call of another function than `dict`')
        if not _CLASS.fullmatch(str(found.get('type', 'Any'))):  # a registry imports what it names
            raise ValueError('a `type` that names a function')
        return found
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        kind = dict(List=list, Tuple=tuple, Set=set)[type(node).__name__]
        return kind(map(_plain, node.elts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_plain(node.operand)
    if isinstance(node, ast.Name):
        return dict(inf=float('inf'), nan=float('nan'))[node.id]
    return ast.literal_eval(node)


@register_handler(['yaml', 'yml'])
class SafeYamlHandler(YamlHandler):
    """MMEngine's handler of YAML files, whose tags may not name Python's objects."""

    def load_from_fileobj(self, file: Any, **kwargs: Any) -> Any:
        """Read plain values.

        Raises:
            ValueError: It is no YAML, or asks for more than plain values.
        """
        kwargs.setdefault('Loader', getattr(yaml, 'CSafeLoader', yaml.SafeLoader))
        try:
            return super().load_from_fileobj(file, **kwargs)
        except yaml.YAMLError as error:
            text = ' '.join(str(error).split())
            raise ValueError(f'expected YAML of plain values, found: {text:.200}') from error


CheckpointLoader.register_scheme('', load_from_local, force=True)
CheckpointLoader.register_scheme(('http://', 'https://'), load_from_http, force=True)
for _prefixes, _loader in (
        (('modelzoo://', 'torchvision://'), host.load_from_torchvision),
        (('open-mmlab://', 'openmmlab://'), host.load_from_openmmlab),
        (('mmcls://', ), host.load_from_mmcls),
        (('pavi://', ), host.load_from_pavi),
        ((r'(\S+\:)?s3://', r'(\S+\:)?petrel://'), host.load_from_ceph)):
    CheckpointLoader.register_scheme(_prefixes, _restricted(_loader), force=True)
