"""Checkpoints of timm's ``efficientvit_b0`` to ``b3`` as those of our ``EfficientViT``.

Reads .safetensors or .pth, writes a .pth with the ``state_dict`` of the ImageClassifier. Every key
is accounted for: the result loads strictly into the model that it was made for.

Example:
    python tools/model_converters/efficientvit_timm.py model.safetensors efficientvit_b1.pth
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.foreign_checkpoint import run
from mmkcr.cli.command import command
from mmkcr.models import EfficientViT, EfficientViTClsHead

_RULES = (
    (r'\.norm\.', '.bn.'),
    (r'^stem\.in_conv\.', 'backbone.stem.0.'),
    (r'^stem\.res(\d+)\.main\.', lambda match: f'backbone.stem.{int(match[1]) + 1}.'),
    (r'^stages\.(\d+)\.blocks\.(\d+)\.', r'backbone.stages.\1.\2.'),
    (r'\.context_module\.main\.', '.attn.'),
    (r'\.local_module\.main\.', '.local.'),
    (r'(stages\.\d+\.\d+)\.main\.', r'\1.'),
    (r'\.qkv\.conv\.', '.qkv.'),
    (r'^head\.classifier\.0\.', 'head.hidden.'),
    (r'^head\.classifier\.1\.', 'head.norm.'),
    (r'^head\.classifier\.4\.', 'head.fc.'),
)


def convert(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename timm's keys.

    Args:
        state (dict[str, Tensor]): Of timm's ``EfficientVit``.

    Returns:
        dict[str, Tensor]: Of an ``ImageClassifier`` with ``EfficientViT`` and
        ``EfficientViTClsHead``.

    Raises:
        ValueError: A key or a shape does not belong to B0 to B3.
    """
    renamed = {}
    for key, value in state.items():
        for pattern, replacement in _RULES:
            key = re.sub(pattern, replacement, key)
        renamed[key] = value
    _check(renamed)
    return renamed


def _check(state: dict[str, Tensor]) -> None:
    """Load into the architecture of the stem's width, strictly."""
    width = len(state.get('backbone.stem.0.conv.weight', ()))
    names = [name for name, arch in EfficientViT.arch_zoo.items() if arch['widths'][0] == width]
    if not names or 'head.fc.weight' not in state:
        raise ValueError("expected a checkpoint of timm's `efficientvit_b0` to `b3`, found one "
                         f'with the keys {", ".join(list(state)[:3])}, ...')
    backbone = EfficientViT(arch=names[0])
    widths = (len(state['head.in_conv.conv.weight']), len(state['head.hidden.weight']))
    head = EfficientViTClsHead(len(state['head.fc.weight']), backbone.widths[-1], widths)
    model = torch.nn.ModuleDict(dict(backbone=backbone, head=head))
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ValueError(f"expected the keys and shapes of timm's `efficientvit_{names[0]}`, found "
                         f'others ({" ".join(str(error).split())[:300]})') from error


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Convert and write."""
    run(__doc__, "timm's checkpoint", convert, argv)


if __name__ == '__main__':
    main()
