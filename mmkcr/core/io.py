"""Files that are either complete or absent, and folders that one run writes to."""

import fcntl
import json
import os
import socket
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Iterator, List, Optional, Union

LOCK = '.lock'
_PART, _DAY = '.part-', 24 * 3600.


@contextmanager
def atomic_write(path: Union[str, Path]) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that is renamed to it on success.

    At any moment the file is the old one or the new one, whole, also after a crash of the machine.
    The temporary name is of this process alone.

    Args:
        path (str | Path): The final file; its folder is made.

    Yields:
        Path: Where to write. It is removed if the block raises, and the file
        that was at ``path`` before stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f'{_PART}{socket.gethostname()}-{os.getpid()}-{path.stem}.'
    handle, name = tempfile.mkstemp(prefix=prefix, suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    umask = os.umask(0)
    os.umask(umask)
    try:
        yield temporary
        temporary.chmod(0o666 & ~umask)
        with open(temporary, 'rb+') as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_stale(folder: Union[str, Path]) -> List[Path]:
    """Remove what :func:`atomic_write` could not, because its process was killed.

    Args:
        folder (str | Path): Files of living processes stay, and those of other machines for a day.

    Returns:
        list[Path]: What was removed.
    """
    host, removed = socket.gethostname(), []
    for path in Path(folder).glob(f'{_PART}*'):
        own = path.name.startswith(f'{_PART}{host}-')
        writer = path.name.removeprefix(f'{_PART}{host}-').split('-')[0]
        if own and writer.isdigit():
            stale = not _alive(int(writer))
        else:
            stale = time.time() - path.stat().st_mtime > _DAY
        if stale:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@contextmanager
def locked(folder: Union[str, Path]) -> Iterator[None]:
    """Let no other run write to a folder.

    The system takes the lock from a process that ends, however it ends: the file that is left then
    locks nobody out. Files that a killed run left half written are removed.

    Args:
        folder (str | Path): Made if it is not there, and removed if it is still empty in the end.

    Raises:
        ValueError: Another run has it; the message names process and machine.
    """
    folder = Path(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    file = _acquire(folder / LOCK)
    # a worker that outlives its killed parent must not hold what the parent held
    os.register_at_fork(after_in_child=file.close)
    try:
        remove_stale(folder)
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        file.close()
        for path in missing:  # from the innermost
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()


def _acquire(path: Path) -> IO:
    while True:
        file = open(path, 'a+', encoding='utf8')  # noqa: SIM115  (held until the run ends)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = _owner(file.read())
            file.close()
            raise ValueError(f'expected `{path.parent}` for this run alone, found that {owner} '
                             'writes to it: wait, or give another `--work-dir`') from None
        except OSError:  # a file system without locks
            pass
        if _inode(path) != os.fstat(file.fileno()).st_ino:  # its owner removed it meanwhile
            file.close()
            continue
        file.truncate(0)
        json.dump(dict(pid=os.getpid(), host=socket.gethostname()), file)
        file.flush()
        return file


def _inode(path: Path) -> Optional[int]:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _owner(text: str) -> str:
    try:
        owner = json.loads(text)
        return f'process {owner["pid"]} of `{owner["host"]}`'
    except (ValueError, KeyError, TypeError):
        return 'another run'
