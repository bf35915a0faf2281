"""Public checkpoints of foundation ViTs for ``mmkcr.DWConvVisionTransformer``: the same numbers.

Reads, told apart by their keys, the files that the authors publish: DINOv2 of Facebook, with or
without registers (``dinov2_vitb14_pretrain.pth``, ``dinov2_vitl14_reg4_pretrain.pth``), MAE
(``mae_pretrain_vit_base.pth``, with or without its decoder) and CLIP of OpenAI (``ViT-B-16.pt``,
whose image encoder is taken). What only pre-training needs is left out and listed: mask token,
decoder, CLIP's text encoder and projection. What is written loads strictly, by
``init_cfg=dict(type='Pretrained', checkpoint=...)``, into any ViT of mmkcr or mmpretrain that has
these arguments:

  DINOv2   patch_size=14, layer_scale_init_value=1e-5, num_registers=4 if there are registers
  MAE      patch_size=16
  CLIP     patch_size as in its name, pre_norm=True, norm_cfg=dict(type='LN', eps=1e-5),
           layer_cfgs=dict(act_cfg=dict(type='mmpretrain.QuickGELU'))

Positions keep their number; they are resized when loaded at another image size, without
the offset of DINOv2's own code.

Example:
    python tools/model_converters/foundation_vit.py dinov2_vitl14_reg4_pretrain.pth dinov2.pth
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from lab.foreign_checkpoint import run
from mmkcr.cli.command import command

Names = Sequence[tuple[str, str]]
#: Beginnings of keys, and what they become, of timm's names, which DINOv2 and MAE have.
_TIMM: Names = (
    (r'(cls_token|pos_embed|register_tokens)$', r'\1'),
    (r'patch_embed\.proj\.', 'patch_embed.projection.'),
    (r'blocks\.(\d+)\.norm([12])\.', r'layers.\1.ln\2.'),
    (r'blocks\.(\d+)\.attn\.(qkv|proj)\.', r'layers.\1.attn.\2.'),
    (r'blocks\.(\d+)\.ls1\.gamma$', r'layers.\1.attn.gamma1.weight'),
    (r'blocks\.(\d+)\.ls2\.gamma$', r'layers.\1.ffn.gamma2.weight'),
    (r'blocks\.(\d+)\.mlp\.fc1\.', r'layers.\1.ffn.layers.0.0.'),
    (r'blocks\.(\d+)\.mlp\.fc2\.', r'layers.\1.ffn.layers.1.'),
    (r'norm\.', 'ln1.'),
)
_CLIP: Names = (
    (r'visual\.class_embedding$', 'cls_token'),
    (r'visual\.positional_embedding$', 'pos_embed'),
    (r'visual\.conv1\.', 'patch_embed.projection.'),
    (r'visual\.ln_pre\.', 'pre_norm.'),
    (r'visual\.ln_post\.', 'ln1.'),
    (r'visual\.transformer\.resblocks\.(\d+)\.ln_([12])\.', r'layers.\1.ln\2.'),
    (r'visual\.transformer\.resblocks\.(\d+)\.attn\.in_proj_', r'layers.\1.attn.qkv.'),
    (r'visual\.transformer\.resblocks\.(\d+)\.attn\.out_proj\.', r'layers.\1.attn.proj.'),
    (r'visual\.transformer\.resblocks\.(\d+)\.mlp\.c_fc\.', r'layers.\1.ffn.layers.0.0.'),
    (r'visual\.transformer\.resblocks\.(\d+)\.mlp\.c_proj\.', r'layers.\1.ffn.layers.1.'),
)
#: What only pre-training needs.
_LEFT_OUT = re.compile(
    r'mask_token$|decoder_|visual\.proj$|(?!visual\.)(transformer|token_embedding|ln_final)\.|'
    r'(positional_embedding|text_projection|logit_scale|input_resolution|context_length|'
    r'vocab_size)$')
#: Without these it is no such ViT.
_NEEDED = ('cls_token', 'pos_embed', 'patch_embed.projection.weight', 'layers.0.attn.qkv.weight',
           'layers.0.ffn.layers.1.weight', 'ln1.weight')


def convert(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename the keys of DINOv2, MAE or CLIP.

    Args:
        state (dict[str, Tensor]): In the authors' names.

    Returns:
        dict[str, Tensor]: Of ``mmkcr.DWConvVisionTransformer``, in fp32.

    Raises:
        ValueError: It lacks a part of such a ViT, or has a key that none has.
    """
    names = _CLIP if 'visual.class_embedding' in state else _TIMM
    renamed, left_out = {}, []
    for key, value in state.items():
        name = next((re.sub(f'^{old}', new, key) for old, new in names if re.match(old, key)), None)
        if name is None and not _LEFT_OUT.match(key):
            raise ValueError(f'expected a ViT of DINOv2, MAE or CLIP, found one with the key '
                             f'`{key}`, which these do not have')
        if name is None:
            left_out.append(key)
        else:
            renamed[name] = value.float()
    missing = [name for name in _NEEDED if name not in renamed]
    if missing:
        raise ValueError(f'expected a ViT of DINOv2, MAE or CLIP with what becomes `{missing[0]}`, '
                         f'found one with the keys {", ".join(list(state)[:3])}, ...')
    if names is _CLIP:  # the class token is a vector there, and the positions a matrix
        renamed['cls_token'] = renamed['cls_token'][None, None]
        renamed['pos_embed'] = renamed['pos_embed'][None]
    parts = sorted({key.partition('.')[0] for key in left_out})
    print(f'Left out, {len(left_out)} tensors: {", ".join(parts) or "nothing"}')
    return renamed


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Convert and write."""
    run(__doc__, 'checkpoint of DINOv2, MAE or CLIP', convert, argv)


if __name__ == '__main__':
    main()
