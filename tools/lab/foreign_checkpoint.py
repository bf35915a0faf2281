"""Checkpoints of other libraries, for the converters."""

from pathlib import Path
from typing import Callable, Dict, Optional, Sequence

import torch
from torch import Tensor

from mmkcr.apis.arguments import check_place
from mmkcr.apis.cli import Parser, add_trust_argument
from mmkcr.core import atomic_write, check_finite_state
from mmkcr.safe_load import read_checkpoint


def read(path: Path) -> Dict[str, Tensor]:
    """The weights in a checkpoint of PyTorch or of safetensors.

    Args:
        path (Path): File of the one (any suffix) or the other (``.safetensors``).

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is no checkpoint, or not finite.
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
    else:
        content = read_checkpoint(path)
        state = content.get('state_dict', content)
    check_finite_state(state, str(path))
    return state


def run(description: str, source: str, convert: Callable[[Dict[str, Tensor]], Dict[str, Tensor]],
        argv: Optional[Sequence[str]]) -> None:
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
