"""Checkpoints of other libraries, for the converters."""

from pathlib import Path
from typing import Dict

from torch import Tensor

from mmkcr.core import check_finite_state
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
