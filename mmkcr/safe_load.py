"""Checkpoints are data: reading one runs no code, unless the user trusts it.

MMEngine tries PyTorch's restricted unpickler and then falls back to the unrestricted one, which
runs any code of a file; and its list of permitted functions contains ``getattr``. This
package reads with :func:`read_checkpoint`. :func:`restrict_checkpoints` makes MMEngine's own
readers safe, too, in this process: for its runs, inferencers and ``Pretrained``.
:func:`trust_checkpoints`, ``--trust-checkpoint`` of the commands, or the environment variable
``MMKCR_TRUST_CHECKPOINT=1`` let checkpoints run code, as MMEngine does.
"""

import contextlib
import functools
import os
import pickle
import re
import zipfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path, PosixPath
from typing import Any
from urllib.error import URLError

import numpy as np
import torch

from mmkcr.core.checks import one_line
from mmkcr.core.saved_folder import check_folder

ENVIRONMENT = 'MMKCR_TRUST_CHECKPOINT'
_FORCE = 'TORCH_FORCE_WEIGHTS_ONLY_LOAD'
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
    """Read a checkpoint from a file, a URL, or any other source that MMEngine reads.

    Args:
        path (str | Path): File or address.
        map_location (Any): Of ``torch.load``: where tensors are put. Defaults to ``'cpu'``.
        keys (Sequence[str]): Keys of the weights; the first that is there counts. Without any of
            them the checkpoint itself is the weights. Defaults to ``'state_dict'``.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, is damaged, would run code, or is of a saved network whose
            folder was changed since.
    """
    checkpoint = _load(str(path), map_location)
    state = next((checkpoint[key] for key in keys if key in checkpoint), checkpoint)
    entries = state.items() if isinstance(state, Mapping) else [('state_dict', state)]
    others = [name for name, value in entries
              if not (isinstance(name, str) and torch.is_tensor(value))]
    if others or not entries:
        entry = f'the entry `{str(others[0]):.60}`, which is none' if others else 'no entry'
        raise ValueError(f'expected a checkpoint with tensors by name at `{path}`, found {entry}')
    return checkpoint


def _load(filename: str, map_location: Any) -> Mapping:
    """A file's entries by name; errors of pickle, zip and PyTorch become one sentence."""
    if not is_address(filename) and not Path(filename).expanduser().is_file():
        raise FileNotFoundError(f'expected a checkpoint at `{filename}`, found none')
    if filename.endswith('.safetensors') and not is_address(filename):
        check_folder(Path(filename).expanduser().parent)
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
        reason = one_line(error, 1000) if isinstance(error, ValueError) else type(error).__name__
        raise ValueError(f'expected a checkpoint at `{filename}`, found a file that cannot be '
                         f'read ({reason})') from error
    if not isinstance(content, Mapping):
        raise ValueError(f'expected a checkpoint with a `state_dict` at `{filename}`, found a '
                         f'`{type(content).__name__}`')
    return content


def _content(filename: str, map_location: Any) -> Any:
    path = Path(filename).expanduser()
    if path.suffix == '.safetensors' and not is_address(filename):  # data alone, without pickle
        from safetensors.torch import load_file
        return load_file(path)
    trusted = is_trusted()
    with torch.serialization.safe_globals([] if trusted else _harmless()):
        if is_address(filename):
            from mmengine.runner.checkpoint import CheckpointLoader
            with contextlib.ExitStack() as stack:
                if not trusted:  # PyTorch's own variable, as MMEngine's loaders ask for all
                    os.environ[_FORCE] = '1'
                    stack.callback(os.environ.pop, _FORCE)
                return CheckpointLoader._get_checkpoint_loader(filename)(filename, map_location)
        if zipfile.is_zipfile(path):  # PyTorch's format since 2020; PyTorch itself checks no sums
            with zipfile.ZipFile(path) as archive:
                # it never compresses
                if any(file.compress_type for file in archive.infolist()) or archive.testzip():
                    raise ValueError('it was damaged after it was written')
        return torch.load(path, map_location=map_location, weights_only=not trusted)


def restrict_checkpoints() -> None:
    """Make MMEngine's reader of checkpoints in this process read data alone.

    Configs in them, which are Python, are dropped: MMEngine runs ``meta.config`` on resuming, to
    print a warning, and ``cfg`` for an inferencer without a config.
    """
    from mmengine.runner.checkpoint import CheckpointLoader

    def load_checkpoint(filename: str, map_location: Any = None, logger: Any = None) -> Any:
        """Read a file or address ``filename``; ``logger`` is part of the host's signature."""
        content = _load(filename, map_location)
        hub = content.get('message_hub')
        runtime = hub.get('runtime_info') if isinstance(hub, dict) else None
        for entries in () if is_trusted() else (content.get('meta'), runtime):
            for key in ('config', 'cfg') if isinstance(entries, dict) else ():
                entries.pop(key, None)
        return content

    CheckpointLoader.load_checkpoint = staticmethod(load_checkpoint)


def _method(owner: Any, name: str) -> Any:
    """The only ``getattr`` that a log's pickle needs: statistics of a ``HistoryBuffer``."""
    from mmengine.logging import HistoryBuffer
    if owner is not HistoryBuffer or name not in ('min', 'max', 'mean', 'current'):
        raise pickle.UnpicklingError('Trying to call reduce for unrecognized function getattr')
    return getattr(owner, name)


@functools.lru_cache(maxsize=None)
def _harmless() -> list[Any]:
    """Types in checkpoints of MMEngine's runs beside tensors and plain values.

    And containers in which DeiT, MAE and DINO keep their options.
    """
    allowed = [slice, Namespace, PosixPath, np.ndarray, np.dtype,
               *{type(np.dtype(code)) for code in '?bBhHiIlLqQefdU'}]
    # a pair (object, name) lets the name in the pickle stand for our object; NumPy's old and new
    # module names both occur
    allowed += [(getattr(np._core.multiarray, name), f'numpy.{core}.multiarray.{name}')
                for core in ('core', '_core') for name in ('_reconstruct', 'scalar')]
    with contextlib.suppress(ImportError):  # not needed for other checkpoints than its own
        from mmengine.config import ConfigDict
        from mmengine.logging import HistoryBuffer
        allowed += [ConfigDict, HistoryBuffer, (_method, 'builtins.getattr')]
    return allowed
