"""FLAVA's public checkpoint for ``mmkcr.FlavaVQA``: other keys, the same numbers.

Reads ``pytorch_model.bin`` or ``model.safetensors`` of ``facebook/flava-full`` on the Hugging Face
hub, or any checkpoint that ``FlavaModel`` or ``FlavaForPreTraining`` saved. What only its
pre-training needs is left out: contrastive projections, masked prediction heads, the image
codebook, mask token, poolers, and the last norms of the image and text encoders, which the
multimodal encoder does not read. The new head starts at random.

Example:
    python tools/model_converters/flava.py model.safetensors flava_vqa.pth
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.foreign_checkpoint import run
from mmkcr.cli.command import command

_ENCODERS = dict(image_model='backbone.model', text_model='text_encoder',
                 multimodal_model='multimodal_encoder')
_PROJECTIONS = ('image_to_mm_projection', 'text_to_mm_projection')
_LEFT_OUT = re.compile(
    r'(image|text)_model\.layernorm\.|\w+_model\.pooler\.|\w+\.embeddings\.(mask_token|\w+_ids)$')


def convert(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename FLAVA's keys.

    Args:
        state (dict[str, Tensor]): Of ``FlavaModel`` or ``FlavaForPreTraining``.

    Returns:
        dict[str, Tensor]: Of :class:`mmkcr.FlavaVQA`, without its head.

    Raises:
        ValueError: It lacks one of FLAVA's encoders or of the projections between them.
    """
    renamed = {}
    for key, value in state.items():
        key = key.removeprefix('flava.')
        part, _, rest = key.partition('.')
        if part in _ENCODERS and not _LEFT_OUT.match(key):
            renamed[f'{_ENCODERS[part]}.{rest}'] = value
        elif part in _PROJECTIONS:
            renamed[key] = value
    missing = [name for name in (*_ENCODERS.values(), *_PROJECTIONS)
               if not any(key.startswith(f'{name}.') for key in renamed)]
    if missing:
        raise ValueError(f'expected a checkpoint of FLAVA with what becomes `{missing[0]}`, found '
                         f'one with the keys {", ".join(list(state)[:3])}, ...')
    return renamed


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Convert and write."""
    run(__doc__, "FLAVA's checkpoint", convert, argv)


if __name__ == '__main__':
    main()
