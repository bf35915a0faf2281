"""Files that are either complete or absent, and folders that one run writes to."""

import hashlib
import os
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

LOCK = '.lock'
_PART, _DAY = '.part-', 24 * 3600.


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that is renamed to it on success.

    At any moment ``path`` is the complete old file or the complete new one, even after a crash of
    the machine. If the block raises, the old file stays. The folder is created.
    """
    with _beside(Path(path)) as temporary:
        temporary.touch(exist_ok=False)
        yield temporary
        _write_out(temporary)
        os.replace(temporary, path)


@contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder for files beside ``path`` that is renamed to it on success.

    Raises:
        ValueError: There is something at ``path`` already, other than an empty folder.
    """
    path = Path(path)
    check_new_folder(path)
    with _beside(path) as temporary:
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            _write_out(file)
        os.replace(temporary, path)


def check_new_folder(path: Path) -> None:
    """Refuse a path with something at it, other than an empty folder."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ValueError(f'expected a new or an empty folder at `{path}`, found one with content: '
                         'give another, or remove it')


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """A temporary path of this process alone; whatever stands there is removed after the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    owner = f'{socket.gethostname()}-{os.getpid()}'  # read by `remove_stale`
    temporary = path.with_name(f'{_PART}{owner}-{uuid.uuid4().hex}-{path.name}')
    try:
        yield temporary
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _write_out(file: Path) -> None:
    """Have a file on the disk: a crash must not lose it."""
    with open(file, 'rb+') as opened:
        os.fsync(opened.fileno())


def write_tensors(content: Any, path: str | Path) -> None:
    """``torch.save`` to a path, where a full disk is an ``OSError``."""
    with open(path, 'wb') as file:  # PyTorch's own writer raises other errors, each once
        torch.save(content, file)


def file_sha256(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal, read part by part."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def remove_stale(folder: str | Path) -> None:
    """Remove files that :func:`atomic_write` and :func:`atomic_folder` left whose process was
    killed.

    Files of living processes stay. Files of other machines stay for a day. Sub-folders are left.
    """
    for path in Path(folder).glob(f'{_PART}*'):
        # only processes of this machine can be looked up
        here = re.match(rf'{_PART}{re.escape(socket.gethostname())}-(\d+)-', path.name)
        if not _alive(int(here[1])) if here else time.time() - path.stat().st_mtime > _DAY:
            _remove(path)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)  # signal 0 only checks
    except OSError as error:
        return isinstance(error, PermissionError)  # it lives, under another user
    return True


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Lock a folder, so that no other run writes to it; one that is new and stays empty goes again.

    The operating system releases the lock when the process ends, however it ends. So a lock file
    that is left behind locks nobody out. Temporary files of a killed run are removed.

    Raises:
        ValueError: Another run holds the lock; the message names its process and machine.
    """
    folder = Path(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        owner = (folder / LOCK).read_text(encoding='utf8') or 'another run'
        raise ValueError(f'expected `{folder}` for this run alone, found that {owner} writes to '
                         'it: wait, or give another `--work-dir`') from None
    try:
        (folder / LOCK).write_text(f'process {os.getpid()} of `{socket.gethostname()}`',
                                   encoding='utf8')
        remove_stale(folder)
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while still locked
        lock.release()
        for path in missing:  # from the innermost
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
