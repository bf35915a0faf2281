"""Stages of a longer job that are run once and then reused."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mmengine
import torch

from mmkcr.core import atomic_write
from mmkcr.version import __version__

RECORD = 'stage.json'


def digest(inputs: Any) -> str:
    """SHA-256 of anything that JSON holds, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def run_stage(folder: Path, inputs: Mapping[str, Any],
              work: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Run a stage, unless it is finished with the same inputs.

    ``<folder>/stage.json`` is written before the work, so that the next call
    finds an unfinished stage (``work`` then goes on with what is in the folder),
    and again with the result after it. A folder of other inputs, or of other
    versions of torch, mmengine or this package, is emptied first.

    Args:
        folder (Path): The stage's own.
        inputs (dict): All that the result depends on, of JSON types: configs,
            and digests of the files that earlier stages wrote.
        work (Callable): Takes the folder; returns the result, of JSON types.

    Returns:
        dict: The result.

    Raises:
        FileExistsError: The folder holds something else than a stage.
    """
    inputs = dict(inputs, versions=[torch.__version__, mmengine.__version__, __version__])
    key, record = digest(inputs), folder / RECORD
    found = json.loads(record.read_text()) if record.is_file() else {}
    if found.get('key') == key and 'result' in found:
        return found['result']
    if found.get('key') != key:
        _empty(folder)
        _write(record, dict(key=key, inputs=inputs))
    result = work(folder)
    _write(record, dict(key=key, inputs=inputs, result=result))
    return json.loads(json.dumps(result))


def _empty(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / RECORD).is_file():
            raise FileExistsError(f'expected an empty folder or one of an earlier run, found other '
                                  f'files in `{folder}`')
        shutil.rmtree(folder)


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + '\n')
