"""Files of finished work, which only the work that they belong to reads again."""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from .io import atomic_write, remove_stale, write_tensors

#: Name of the file with the key of the work, JSON.
KEY = 'key.json'
_DIGEST, _PIECE = hashlib.sha256().digest_size, 2**20


class Progress:
    """A folder of finished work, so that a killed call can go on if it is repeated.

    Each file ends with a SHA-256 of the key, of its own name and of its content. So a file that was
    damaged, that was exchanged with another one or that is of other work is never used: a warning
    names it, and its content is made anew.

    Args:
        folder (str | Path): Folder of these files alone. Files of other work in it are removed at
            the first write, with a warning.
        key (Mapping): Identity of the work, in values that JSON or ``str`` can write: networks,
            images, options. Work with another key is other work.
    """

    def __init__(self, folder: str | Path, key: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.key = json.dumps(key, indent=1, sort_keys=True, default=str)
        remove_stale(self.folder)
        self._continued = self.has(KEY)

    def has(self, name: str) -> bool:
        """Whether the folder has a file of this name and is of this work."""
        mark = self.folder / KEY
        known = mark.is_file() and mark.read_bytes() == self.key.encode()
        return known and (self.folder / name).is_file()

    def read(self, name: str) -> dict[str, Any] | None:
        """Read a file; the result is None if the file is missing or was changed afterwards.

        Tensors are on the CPU. A file that is not as it was written is removed.
        """
        path = self.folder / name
        if not self.has(name):
            return None
        digest, recorded = self._digest(name, path, path.stat().st_size - _DIGEST)
        if digest != recorded:
            logging.getLogger('mmkcr').warning('`%s` is damaged: it is made anew.', path)
            path.unlink()
            return None
        return torch.load(path, weights_only=True, map_location='cpu')

    def save(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file of tensors and plain values, whole or not at all."""
        self._mark()
        with atomic_write(self.folder / name) as path:
            write_tensors(content, path)
            digest, _ = self._digest(name, path, path.stat().st_size)
            with open(path, 'ab') as file:
                file.write(digest)

    def once(self, name: str, make: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """Read a file; if there is none, make its content and write it.

        Args:
            name (str): Name of the file.
            make (Callable): Returns tensors and plain values.
        """
        if (content := self.read(name)) is None:
            self.save(name, content := make())
        return content

    def withdraw(self) -> None:
        """Delete the files of a refused call, unless it went on with the work of an earlier one."""
        if self.has(KEY) and not self._continued:
            self.remove()

    def remove(self) -> None:
        """Delete everything."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # not empty
            self.folder.parent.rmdir()

    def differing(self) -> list[str]:
        """Names of the entries in which the folder's key differs from the key of this work."""
        try:
            own, recorded = json.loads(self.key), dict(json.loads((self.folder / KEY).read_bytes()))
        except (ValueError, TypeError, RecursionError):
            return ['a damaged key']
        return sorted(name for name in {*own, *recorded} if own.get(name) != recorded.get(name))

    def _mark(self) -> None:
        """Make the folder one of this work: the key comes first, files without it are nobody's."""
        if self.has(KEY):
            return
        if (self.folder / KEY).is_file():
            logging.getLogger('mmkcr').warning(
                '`%s` holds work of another call (%s): this call begins anew.', self.folder,
                ', '.join(self.differing()))
        self.remove()
        with atomic_write(self.folder / KEY) as path:
            path.write_bytes(self.key.encode())

    def _digest(self, name: str, path: Path, size: int) -> tuple[bytes, bytes]:
        """The SHA-256 of a file's first ``size`` bytes, and the bytes behind them."""
        sha = hashlib.sha256(f'{self.key}\n{name}\n'.encode())
        with open(path, 'rb') as file:
            for start in range(0, size, _PIECE):
                sha.update(file.read(min(_PIECE, size - start)))
            return sha.digest(), file.read()
