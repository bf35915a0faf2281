"""Sizes, devices and places that a user names, refused before any work begins."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

#: Maximum number of pixels of an image that a model is built, counted or timed for.
MOST_PIXELS = 2**26


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(3, H, W) of a command's ``--shape``, which is H and W or one number for both.

    Raises:
        ValueError: Not one or two positive numbers, or more pixels than any model takes.
    """
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise ValueError('expected `--shape` of one or two positive numbers, found '
                         f'{" ".join(map(str, shape))}')
    if shape[0] * shape[-1] > MOST_PIXELS:
        raise ValueError(f'expected `--shape` of {MOST_PIXELS} pixels at most, found '
                         f'{shape[0]} x {shape[-1]}')
    return 3, shape[0], shape[-1]


def check_device(name: str) -> None:
    """Refuse a device such as ``'cuda:1'`` that does not exist.

    Raises:
        ValueError: It is not the name of a device, or this machine does not have it.
    """
    try:
        device = torch.device(name)
        if device.type == 'cuda' and not torch.cuda.is_available():
            raise ValueError(f'expected a CUDA device for `--device {name}`, found none')
        # some backends fail only when they are used
        torch.empty(1, device=device).cpu()
    except (RuntimeError, NotImplementedError) as error:
        text = str(error).strip().splitlines() or ['']
        raise ValueError(f'expected a device of this machine such as `cpu` or `cuda`, found '
                         f'`--device {name}` ({text[0]:.120})') from error


def check_place(path: Any, flag: str, file: bool = False) -> None:
    """Refuse a place where nothing can be written; nothing is left behind.

    Args:
        path (str | Path): A folder, or with ``file`` a file; it need not exist.
        flag (str): Flag of the command, for the message.
        file (bool): Whether a file is to be written. Defaults to False.

    Raises:
        ValueError: A file is where a folder has to be, or a folder where the file has to be.
        OSError: The system says that nothing can be written there.
    """
    path = Path(path).expanduser()
    if file and path.is_dir():
        raise ValueError(f'expected a file to write at `{flag} {path}`, found a folder')
    folder = path.parent if file else path
    # the nearest folder that exists
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(f'expected a place to write for `{flag} {path}`, found a file at '
                         f'`{folder}`')
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b'0' * 4096)  # an empty file can be made even on a full disk
            probe.flush()
    except OSError as error:
        raise OSError(error.errno, f'expected a place to write for `{flag} {path}`, found none: '
                      f'{error.strerror}') from error
