"""Generated folders that are either complete or not there."""

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any


def rebuild_folder(out: Path, write: Callable[[Path], None], files: str, stamp: str,
                   options: dict[str, Any]) -> bool:
    """Write a folder through a temporary one, unless it is there and intact.

    Args:
        out (Path): The folder.
        write (Callable): Writes all the files into the new folder that it is given.
        files (str): Regular expression of the relative paths that ``write`` may produce.
        stamp (str): Name of the json file that records the options and the files' digest.
        options (dict[str, Any]): Options of ``write``; others in the stamp mean another folder.

    Returns:
        bool: Whether the folder was written.

    Raises:
        FileExistsError: ``out`` is a file, or holds a file that ``write`` cannot have produced.
    """
    out = out.expanduser().resolve()
    if _is_intact(out, stamp, options):
        return False
    _refuse_foreign(out, files, stamp)
    fresh = out.with_name(f'.{out.name}-{uuid.uuid4().hex}')
    fresh.mkdir(parents=True)
    try:
        write(fresh)
        record = dict(options=options, digest=folder_digest(fresh, stamp))
        (fresh / stamp).write_text(json.dumps(record, indent=2))
        _exchange(fresh, out)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return True


def folder_digest(folder: Path, stamp: str) -> str:
    """SHA-256 over names and contents of all the files but the stamp."""
    digest = hashlib.sha256()
    for name in _file_names(folder):
        if name != stamp:
            content = (folder / name).read_bytes()
            digest.update(f'{name}\0{len(content)}\0'.encode() + content)
    return digest.hexdigest()


def _file_names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob('*')
                  if not path.is_dir())


def _is_intact(out: Path, stamp: str, options: dict[str, Any]) -> bool:
    try:
        record = json.loads((out / stamp).read_text())
        return record == dict(options=options, digest=folder_digest(out, stamp))
    except (OSError, ValueError):
        return False


def _refuse_foreign(out: Path, files: str, stamp: str) -> None:
    if out.exists() and not out.is_dir():
        raise FileExistsError(f'expected a folder to write to, found the file `{out}`')
    for name in _file_names(out):
        if name != stamp and not re.fullmatch(files, name):
            raise FileExistsError(f'expected a folder that may be replaced, found the foreign '
                                  f'file `{name}` in `{out}`')


def _exchange(fresh: Path, out: Path) -> None:
    """Put ``fresh`` in the place of ``out``; whatever was there goes last."""
    old = fresh.with_name(fresh.name + '-old')
    if out.exists():
        out.rename(old)
    fresh.rename(out)
    shutil.rmtree(old, ignore_errors=True)
