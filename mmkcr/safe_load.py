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
_LIBRARIES = ('mmkcr', 'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmseg')
#: Names that a registry resolves itself; any other dotted name would import a module's function.
_CLASS = re.compile(rf'(({"|".join(_LIBRARIES)})\.)?[A-Za-z_]\w*')
_trusted = False


def trust_checkpoints(trust: bool = True) -> None:
    """Permit, or forbid again, that checkpoints run code when they are read."""
    global _trusted
    _trusted = trust


def is_trusted() -> bool:
    """Whether checkpoints may run code, see :func:`trust_checkpoints`."""
    return _trusted or os.environ.get(ENVIRONMENT, '0') not in ('', '0')


def is_address(path: str | Path) -> bool:
    """Whether a path is an address, behind which the hosts' checkpoints lie, and no local file."""
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
    entries = state.items() if isinstance(state, Mapping) else [('state_dict', state)]
    others = [name for name, value in entries
              if not isinstance(name, str) or not torch.is_tensor(value)]
    if others or not entries:
        entry = f'the entry `{str(others[0]):.60}`, which is none' if others else 'no entry'
        raise ValueError(f'expected a checkpoint with tensors by name at `{path}`, found {entry}')
    return checkpoint


def _load(filename: str, map_location: Any) -> Mapping:
    """A file's entries by name; what pickle, zip and PyTorch raise becomes one sentence."""
    if not is_address(filename) and not Path(filename).expanduser().is_file():
        raise FileNotFoundError(f'expected a checkpoint at `{filename}`, found none')
    try:
        content = _content(filename, map_location)
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
    if not isinstance(content, Mapping):
        raise ValueError(f'expected a checkpoint with a `state_dict` at `{filename}`, found a '
                         f'`{type(content).__name__}`')
    return content


def _content(filename: str, map_location: Any) -> Any:
    trusted = is_trusted()
    with torch.serialization.safe_globals([] if trusted else _harmless()):
        if is_address(filename):
            from mmengine.runner.checkpoint import CheckpointLoader
            with contextlib.nullcontext() if trusted else _forced():
                return CheckpointLoader._get_checkpoint_loader(filename)(filename, map_location)
        path = Path(filename).expanduser()
        if path.suffix == '.safetensors':
            from safetensors.torch import load_file
            return load_file(path)
        _check_archive(path)
        return torch.load(path, map_location=map_location, weights_only=not trusted)


def restrict_checkpoints() -> None:
    """Make MMEngine's reader of checkpoints in this process read data alone.

    Texts of Python that MMEngine runs are dropped: ``meta.config``, which it runs on resuming, to
    print a warning, and ``cfg`` of ``meta`` and of ``message_hub.runtime_info``, which inferencers
    without a config run, unless it is a config of plain values, whose ``custom_imports`` of other
    packages are dropped.
    """
    from mmengine.runner.checkpoint import CheckpointLoader

    def load_checkpoint(filename: str, map_location: Any = None, logger: Any = None) -> Any:
        content = _load(filename, map_location)
        if is_trusted():
            return content
        meta, hub = content.get('meta'), content.get('message_hub')
        runtime = hub.get('runtime_info') if isinstance(hub, dict) else None
        if isinstance(meta, dict):
            meta.pop('config', None)
        for owner in (meta, runtime):
            if isinstance(owner, dict) and 'cfg' in owner:
                text = _without_code(owner.pop('cfg'))
                owner.update({} if text is None else dict(cfg=text))
        return content

    CheckpointLoader.load_checkpoint = staticmethod(load_checkpoint)


def _without_code(text: Any) -> str | None:
    """A recorded config of which MMEngine runs nothing, or None if it is more than plain values."""
    try:
        config = read_config_text(text, 'a checkpoint')
    except ValueError:
        return None
    imports = config.get('custom_imports', {})
    names = imports.get('imports', []) if isinstance(imports, Mapping) else None
    if not isinstance(names, list) or any(
            str(name).split('.')[0] not in _LIBRARIES for name in names):
        config.pop('custom_imports')
        text = type(config)(config.to_dict(), format_python_code=False).pretty_text
    # a base would be run, and braces be replaced in the text before it is parsed, which may end one
    return None if '_base_' in config or '{{' in str(text) else text


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


def _check_archive(path: Path) -> None:
    """Refuse an archive that was damaged since it was written, which PyTorch does not do.

    Files in its format from before 2020 are not archives, and pass.
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
    allowed = [slice, Namespace, PosixPath, *arrays]
    # a pair (object, name) lets the name in the pickle stand for our object; NumPy's old and new
    # module names both occur
    allowed += [(getattr(multiarray, name), f'numpy.{core}.multiarray.{name}')
                for core in ('core', '_core') for name in ('_reconstruct', 'scalar')]
    with contextlib.suppress(ImportError):  # not needed for other checkpoints than its own
        from mmengine.config import ConfigDict
        from mmengine.logging import HistoryBuffer
        allowed += [ConfigDict, HistoryBuffer, (_method, 'builtins.getattr')]
    return allowed


def read_config_text(text: str, path: str | Path) -> 'Config':
    """Parse the config that a run wrote into its checkpoint, without running it.

    Raises:
        ValueError: The text holds something else than assignments of plain values, which
            ``Config.pretty_text`` gives; the message names the checkpoint as ``path``.
    """
    from mmengine.config import Config
    if is_trusted():
        return Config.fromstring(text, '.py')
    try:
        values = {}
        for line in ast.parse(text).body:
            (target, ) = line.targets
            values[target.id] = ast.literal_eval(_Literals().visit(line.value))
        check_types(values, path)
        return Config(values)
    except Exception as error:  # of the parser, and of what is no literal
        raise ValueError(f'expected a config of plain values in the checkpoint `{path}`, found '
                         f'one that is not ({type(error).__name__}); `--trust-checkpoint` lets it '
                         'run code') from error


def check_types(config: Any, path: str | Path) -> None:
    """Refuse a config from a data file in which a ``type`` names a function of any module.

    A registry would import whatever a dotted ``type`` names.

    Raises:
        ValueError: There is such a ``type``; the message names the file as ``path``.
    """
    if isinstance(config, Mapping):
        kind = config.get('type', 'Any')
        if not is_trusted() and not _CLASS.fullmatch(str(kind)):
            raise ValueError(f'expected registered types in `{path}`, found `{kind!s:.60}`, which '
                             'a registry would import')
        config = list(config.values())
    if isinstance(config, (list, tuple, set)):
        for value in config:
            check_types(value, path)


class _Literals(ast.NodeTransformer):
    """Makes literals of ``dict(a=1)``, ``dict({'0': 1})``, ``inf`` and ``nan``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        # a key of None, of `**entries`, is no literal
        named = ast.Dict([word.arg and ast.Constant(word.arg) for word in node.keywords],
                         [word.value for word in node.keywords])
        (only, ) = node.args or [named]
        if getattr(node.func, 'id', None) != 'dict' or not isinstance(only, ast.Dict) or (
                node.args and node.keywords):
            raise ValueError('a call of another function than `dict`')
        return self.generic_visit(only)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Constant(dict(inf=float('inf'), nan=float('nan'))[node.id])
