"""Files that are either complete or absent."""

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, Union


@contextmanager
def atomic_write(path: Union[str, Path]) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that is renamed to it on success.

    Args:
        path (str | Path): The final file; its folder is made.

    Yields:
        Path: Where to write. It is removed if the block raises, and the file
        that was at ``path`` before stays as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f'.{path.stem}.', suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    umask = os.umask(0)
    os.umask(umask)
    try:
        yield temporary
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
