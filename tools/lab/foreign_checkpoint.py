"""Checkpoints of other libraries, for the converters."""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from mmkcr.cli.command import Parser, add_trust_argument
from mmkcr.core import atomic_write, check_finite_state
from mmkcr.core.checks import check_place
from mmkcr.safe_load import is_trusted, read_checkpoint


def read(path: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint of PyTorch or of safetensors.

    Args:
        path (Path): File of the one (any suffix), with a ``state_dict`` or ``model`` in it or bare,
            or of the other (``.safetensors``). A TorchScript archive, which may run code, is read
            with ``--trust-checkpoint`` only.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, not finite, or runs code and is not trusted.
    """
    if not path.is_file():
        raise FileNotFoundError(f'expected a checkpoint at `{path}`, found none')
    if path.suffix == '.safetensors':
        from safetensors import SafetensorError
        from safetensors.torch import load_file
        try:
            state = load_file(path)
        except SafetensorError as error:
            raise ValueError(f'expected a file of safetensors at `{path}`, found none ({error})'
                             ) from error
    elif _is_torchscript(path):
        if not is_trusted():
            raise ValueError(f'expected a file of tensors, found the TorchScript archive `{path}`, '
                             'which may run code: it is read with --trust-checkpoint')
        state = dict(torch.jit.load(str(path), map_location='cpu').state_dict())
    else:
        content = read_checkpoint(path, keys=('state_dict', 'model'))
        state = next((content[key] for key in ('state_dict', 'model') if key in content), content)
    check_finite_state(state, str(path))
    return state


def _is_torchscript(path: Path) -> bool:
    """Whether it is an archive of ``torch.jit.save``, which has code beside its tensors."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.split('/')[1:2] == ['code'] for name in archive.namelist())


def run(description: str, source: str, convert: Callable[[dict[str, Tensor]], dict[str, Tensor]],
        argv: Sequence[str] | None) -> None:
    """The command of a converter: read, convert and write.

    Args:
        description (str): What the command says of itself.
        source (str): Help of its first argument.
        convert (Callable): Takes the foreign weights, gives those of this project.
        argv (Sequence[str], optional): Arguments; None for those of the process.
    """
    parser = Parser(description)
    parser.add_argument('source', help=source)
    parser.add_argument('target', help='where to write')
    add_trust_argument(parser)
    args = parser.parse_args(argv)
    check_place(args.target, 'target', file=True)
    state = convert(read(Path(args.source)))
    with atomic_write(args.target) as path:
        torch.save(dict(state_dict=state), path)
    print(f'{len(state)} tensors: {args.target}')
