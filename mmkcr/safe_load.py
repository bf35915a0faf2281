"""Checkpoints are data: reading one runs no code, unless the user trusts it.

MMEngine tries PyTorch's restricted unpickler and then falls back to the unrestricted one, which
runs whatever a file asks for; and its list of permitted functions contains ``getattr``. This
package reads with :func:`read_checkpoint`. :func:`restrict_checkpoints` makes MMEngine's own
readers do the same in this process, for its runs, inferencers and ``Pretrained``.
:func:`trust_checkpoints`, ``--trust-checkpoint`` of the commands, or the environment variable
``MMKCR_TRUST_CHECKPOINT=1`` permit for checkpoints what MMEngine permits.
"""

import ast
import contextlib
import functools
import os
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any
from urllib.error import URLError

import numpy as np
import torch

if TYPE_CHECKING:
    from mmengine.config import Config

ENVIRONMENT = 'MMKCR_TRUST_CHECKPOINT'
#: Names that a registry resolves itself; any other dotted name would import a module's function.
_CLASS = re.compile(r'(mmkcr\.|mmengine\.|mmcv\.|mmpretrain\.|mmdet\.|mmseg\.)?[A-Za-z_]\w*')
_trusted = False


def trust_checkpoints(trust: bool = True) -> None:
    """Permit, or forbid again, that checkpoints run code when they are read.

    Args:
        trust (bool): Whether the checkpoints' authors are trusted. Defaults to True.
    """
    global _trusted
    _trusted = trust


def is_trusted() -> bool:
    """Whether checkpoints may run code, see :func:`trust_checkpoints`."""
    return _trusted or os.environ.get(ENVIRONMENT, '0') not in ('', '0')


def is_address(path: str | Path) -> bool:
    """Whether a file is not a local one but lies behind an address, as the hosts' checkpoints.

    Args:
        path (str | Path): A path or an address.
    """
    return '://' in str(path)


def read_checkpoint(path: str | Path, map_location: Any = 'cpu',
                    keys: Sequence[str] = ('state_dict', )) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path (str | Path): A file, a URL, or any other source that MMEngine reads.
        map_location (Any): See :func:`torch.load`. Defaults to ``'cpu'``.
        keys (Sequence[str]): Where the weights may be, the first that is there; else the
            checkpoint is the weights themselves. Defaults to ``('state_dict', )``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, is damaged, or would run code.
    """
    checkpoint = _load(str(path), map_location)
    state = next((checkpoint[key] for key in keys if key in checkpoint), checkpoint)
    tensors = isinstance(state, Mapping) and state and all(
        isinstance(name, str) and torch.is_tensor(value) for name, value in state.items())
    if not tensors:
        raise ValueError(f'expected a checkpoint with tensors by name at `{path}`, found '
                         f'{_described(state)}')
    return checkpoint


def _described(state: Any) -> str:
    if not isinstance(state, Mapping):
        return f'a `{type(state).__name__}` as its `state_dict`'
    others = [name for name, value in state.items() if not torch.is_tensor(value)]
    return f'the entry `{str(others[0]):.60}`, which is none' if others else 'no entry'


def _load(filename: str, map_location: Any = None) -> Mapping:
    """A file's entries by name."""
    content = _content(filename, map_location)
    if not isinstance(content, Mapping):
        raise ValueError(f'expected a checkpoint with a `state_dict` at `{filename}`, found a '
                         f'`{type(content).__name__}`')
    return content


def _content(filename: str, map_location: Any) -> Any:
    """A file's content; one damaged since it was written is refused, which PyTorch does not do."""
    path = Path(filename).expanduser()
    if not is_address(filename) and not path.is_file():
        raise FileNotFoundError(f'expected a checkpoint at `{filename}`, found none')
    trusted = is_trusted()
    with _refusing(filename), torch.serialization.safe_globals([] if trusted else _harmless()):
        if is_address(filename):
            from mmengine.runner.checkpoint import CheckpointLoader
            with contextlib.nullcontext() if trusted else _forced():
                return CheckpointLoader._get_checkpoint_loader(filename)(filename, map_location)
        if path.suffix == '.safetensors':
            from safetensors.torch import load_file
            return load_file(path)
        _check_archive(path)
        return torch.load(path, map_location=map_location, weights_only=not trusted)


def _without_code(content: Mapping) -> Mapping:
    """Remove texts of Python that MMEngine runs: ``meta.config`` on resuming, to print a warning.

    Its inferencers without a config run ``cfg`` of ``message_hub.runtime_info`` or of ``meta``,
    which stay if they are configs of plain values.
    """
    if is_trusted():
        return content
    meta, hub = content.get('meta'), content.get('message_hub')
    runtime = hub.get('runtime_info') if isinstance(hub, dict) else None
    for owner, key in ((meta, 'config'), (meta, 'cfg'), (runtime, 'cfg')):
        if isinstance(owner, dict) and key in owner and not (
                key == 'cfg' and _is_plain_config(owner[key])):
            del owner[key]
    return content


def _is_plain_config(text: Any) -> bool:
    try:
        # a base would be run
        return not isinstance(text, str) or '_base_' not in read_config_text(text, 'a checkpoint')
    except ValueError:
        return False


def restrict_checkpoints() -> None:
    """Make MMEngine's reader of checkpoints in this process read data alone."""
    from mmengine.runner.checkpoint import CheckpointLoader

    def load_checkpoint(filename: str, map_location: Any = None, logger: Any = None) -> Any:
        return _without_code(_load(filename, map_location))

    CheckpointLoader.load_checkpoint = staticmethod(load_checkpoint)


@contextlib.contextmanager
def _forced() -> Iterator[None]:
    name = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'  # PyTorch's own: MMEngine's loaders ask for all
    before = os.environ.get(name)
    os.environ[name] = '1'
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})


@contextlib.contextmanager
def _refusing(filename: str) -> Iterator[None]:
    """Turn whatever pickle, zip and PyTorch raise into one sentence."""
    try:
        yield
    except FileNotFoundError:
        raise
    except URLError as error:
        raise FileNotFoundError(f'expected to download a checkpoint from `{filename}`, found that '
                                f'this failed ({error.reason})') from error
    except Exception as error:
        # the function or class that PyTorch's unpickler refused
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
    """Refuse an archive whose members are not as they were written.

    Files in PyTorch's format from before 2020 are not archives, and pass.
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
    """The only ``getattr`` that a log's pickle needs: statistics of a ``HistoryBuffer``."""
    from mmengine.logging import HistoryBuffer
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError('Trying to call reduce for unrecognized function getattr')
    return getattr(owner, name)


@functools.lru_cache(maxsize=None)
def _harmless() -> list[Any]:
    """Types and functions in checkpoints beside tensors and plain values.

    Those of MMEngine's runs, and containers in which other trainings keep their options (DeiT, MAE
    and DINO write an ``argparse.Namespace``).
    """
    arrays = [np.ndarray, np.dtype, *{type(np.dtype(code)) for code in '?bBhHiIlLqQefdU'}]
    multiarray = np._core.multiarray
    found = [slice, Namespace, PosixPath, *arrays]
    # a pair (object, name) lets the name in the pickle stand for our object; NumPy's old and new
    # module names both occur
    found += [(getattr(multiarray, name), f'numpy.{core}.multiarray.{name}')
              for core in ('core', '_core') for name in ('_reconstruct', 'scalar')]
    with contextlib.suppress(ImportError):  # not needed for other checkpoints than its own
        from mmengine.config import ConfigDict
        from mmengine.logging import HistoryBuffer
        found += [ConfigDict, HistoryBuffer, (_method, 'builtins.getattr')]
    return found


def read_config_text(text: str, path: str | Path) -> 'Config':
    """Parse the config that a run wrote into its checkpoint, without running it.

    Args:
        text (str): Assignments of plain values, as ``Config.pretty_text`` gives them.
        path (str | Path): The checkpoint, for the message.

    Raises:
        ValueError: The text holds anything else.
    """
    from mmengine.config import Config
    if is_trusted():
        return Config.fromstring(text, '.py')
    try:
        found = {}
        for line in ast.parse(text).body:
            (target, ) = line.targets
            found[target.id] = _plain(line.value)
        check_types(found, path)
        return Config(found)
    except (AttributeError, KeyError, MemoryError, RecursionError, SyntaxError, TypeError,
            ValueError) as error:
        raise ValueError(f'expected a config of plain values in the checkpoint `{path}`, found '
                         f'one that is not ({type(error).__name__}); `--trust-checkpoint` lets it '
                         'run code') from error


def check_types(config: Any, path: str | Path) -> None:
    """Refuse a config from a data file in which a ``type`` names a function of any module.

    A registry would import whatever a dotted ``type`` names.

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
        elif isinstance(node, (list, tuple, set)):
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
        return found
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        kind = dict(List=list, Tuple=tuple, Set=set)[type(node).__name__]
        return kind(map(_plain, node.elts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_plain(node.operand)
    if isinstance(node, ast.Name):
        return dict(inf=float('inf'), nan=float('nan'))[node.id]
    return ast.literal_eval(node)
