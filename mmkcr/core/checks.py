"""Refusals, and what their sentences have in common: known names, messages in one line."""

import difflib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

#: Maximum number of pixels of an image that a model is built, counted or timed for.
MOST_PIXELS = 2**26


class NonFiniteError(ValueError):
    """A loss, a gate or a weight is not finite."""


def all_finite(value: Tensor) -> bool:
    """Whether a tensor holds neither NaN nor infinity.

    One pass and no copy: on a CPU an eighth of the time of ``torch.isfinite(value).all()``.
    """
    value = torch.view_as_real(value) if value.is_complex() else value
    return not value.numel() or bool(torch.stack(value.detach().aminmax()).isfinite().all())


def check_finite(values: Mapping[str, Tensor], what: str) -> None:
    """Refuse values that are not finite: the message gives their noun, ``what``, and names the
    first.
    """
    for name, value in values.items():
        if not all_finite(value):
            wrong = value.detach()[~torch.isfinite(value.detach())]
            raise NonFiniteError(f'expected finite {what}, found {float(wrong[0])} in `{name}`')


def check_finite_gates(gates: Mapping[str, nn.Module], where: str = '') -> None:
    """Refuse gates, by site, with parameters that are not finite; ``where`` ends the message."""
    check_finite({f'{site}.gate.{name}': parameter for site, gate in gates.items()
                  for name, parameter in gate.named_parameters()}, f'gates{where}')


def check_finite_state(state: Mapping[str, Tensor], path: str,
                       expected: Mapping[str, Tensor] | None = None) -> None:
    """Refuse weights and buffers that are not finite.

    Args:
        state (Mapping[str, Tensor]): Weights and buffers by name.
        path (str): File that they are from, for the message.
        expected (Mapping[str, Tensor], optional): State of a freshly built model. Entries that it
            lacks, or in which it is not finite either, are left out. Defaults to None.

    Raises:
        NonFiniteError: The message names the first entry.
    """
    bad = {name: value for name, value in state.items() if torch.is_tensor(value)
           and value.is_floating_point() and not all_finite(value)}
    if expected is not None:
        bad = {name: value for name, value in bad.items()
               if name in expected and all_finite(expected[name])}
    check_finite(bad, f'weights in `{path}`')


def did_you_mean(word: str, known: Iterable[str], least: float = 0.6) -> str:
    """``'; did you mean `x`?'`` with the nearest known word, or ``''`` where none is near.

    The ``least`` similarity is within [0, 1]. A word that begins a known one with an underscore, as
    ``mlp`` does ``mlp_hidden``, is near.
    """
    words = list(known)
    near = difflib.get_close_matches(word, words, 1, least) or [
        name for name in words if name.startswith(f'{word}_')]
    return f'; did you mean `{near[0]}`?' if near else ''


def one_line(error: BaseException, most: int = 300) -> str:
    """The message of an error in one line; the name of its class if it has none.

    Args:
        error (BaseException): The error.
        most (int): Characters of the message that are kept. Defaults to 300.
    """
    return (' '.join(str(error).split()) or type(error).__name__)[:most]


def image_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """(3, H, W) of a command's ``--shape``, which is H and W or one number for both.

    Raises:
        ValueError: Other numbers, or more than :data:`MOST_PIXELS`.
    """
    if len(shape) not in (1, 2) or min(shape) < 1:
        raise ValueError('expected `--shape` of one or two positive numbers, found '
                         f'{" ".join(map(str, shape))}')
    if shape[0] * shape[-1] > MOST_PIXELS:
        raise ValueError(f'expected `--shape` of {MOST_PIXELS} pixels at most, found '
                         f'{shape[0]} x {shape[-1]}')
    return 3, shape[0], shape[-1]


def check_device(name: str) -> None:
    """Refuse a device such as ``'cuda:1'`` that this machine does not have."""
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
    """Refuse a place that cannot be written; nothing is left behind.

    Args:
        path (str | Path): Folder or file to write.
        flag (str): Option of the command that gave it, for the message.
        file (bool): Whether ``path`` is a file. Defaults to False.

    Raises:
        OSError: The system refuses to write there.
        ValueError: A file stands where a folder must, or a folder where a file must.
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
