"""Progressive masked image modelling of Once-for-Both (section 3.4)."""

from typing import Optional, Sequence

import torch
import torch.nn.functional as F
from mmengine.dist import get_dist_info
from torch import Tensor, nn

from mmkcr.registry import MODELS


@MODELS.register_module()
class MaskedImageHead(nn.Module):
    r"""Reconstructs masked patches from the normalised tokens of the same forward.

    A 1x1 convolution and a pixel shuffle give pixels, compared by L1, on the
    masked ones, with the image normalised by the mean and standard deviation of
    the window around each pixel.

    Args:
        in_channels (int): Width of the tokens.
        patch_size (int): Pixels, on a side, of what is masked and decoded
            together: the stride of the last feature map. Defaults to 16.
        image_channels (int): Defaults to 3.
        window (int): Side of the window, odd. Defaults to 47.
        mask_ratio (float): Share of masked patches; at least one is masked
            unless it is 0. Set by ``LinearScheduleHook``. Defaults to 0.01.
        token_channels (int, optional): Width of the embedding that is masked.
            Defaults to None: ``in_channels``.
        keep_position (bool): Whether masked tokens keep their position
            embedding (the public code drops it). Defaults to True.

    Raises:
        ValueError: ``window`` is even, or a size is not positive.
    """

    def __init__(self,
                 in_channels: int,
                 patch_size: int = 16,
                 image_channels: int = 3,
                 window: int = 47,
                 mask_ratio: float = 0.01,
                 token_channels: Optional[int] = None,
                 keep_position: bool = True) -> None:
        super().__init__()
        if window % 2 == 0 or min(in_channels, patch_size, image_channels, window) < 1:
            raise ValueError('expected positive sizes and an odd `window` of MaskedImageHead, '
                             f'found {in_channels}, {patch_size}, {image_channels} and {window}')
        self.patch_size, self.window, self.keep_position = patch_size, window, keep_position
        self.mask_ratio = mask_ratio
        self.mask_token = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(token_channels or in_channels), std=0.02))
        self.decoder = nn.Sequential(
            nn.Conv2d(in_channels, image_channels * patch_size**2, 1), nn.PixelShuffle(patch_size))

    def draw(self, batch: int, image_size: Sequence[int], generator: torch.Generator) -> Tensor:
        """Masked patches of every image, as many of each.

        Drawn for the batches of all ranks, whose samples interleave, so that
        several processes mask what one would.

        Args:
            batch (int): Images of this rank.
            image_size (Sequence[int]): (H, W).
            generator (torch.Generator): A CPU generator, in the same state on
                every rank.

        Returns:
            Tensor: Boolean, shape (batch, H / patch_size, W / patch_size).
        """
        rows, columns = (side // self.patch_size for side in image_size)
        rank, ranks = get_dist_info()
        order = torch.rand(batch * ranks, rows * columns, generator=generator)[rank::ranks]
        count = max(1, round(self.mask_ratio * rows * columns)) if self.mask_ratio > 0 else 0
        return (order.argsort(1).argsort(1) < count).view(batch, rows, columns)

    def hide(self, tokens: Tensor, hw: Sequence[int], mask: Tensor) -> Tensor:
        """Put the mask token in place of masked tokens.

        Args:
            tokens (Tensor): Shape (B, N, C), the last h * w of N tokens in rows.
            hw (Sequence[int]): h and w, multiples of the mask's sides.
            mask (Tensor): Of :meth:`draw`.
        """
        fine = F.interpolate(mask[:, None].float(), size=tuple(hw), mode='nearest').flatten(1) > 0
        extra = tokens.shape[1] - fine.shape[1]
        fine = F.pad(fine, (extra, 0)).to(tokens.device)
        return torch.where(fine[..., None], self.mask_token.to(tokens.dtype), tokens)

    def normalised(self, images: Tensor) -> Tensor:
        """Images less the mean, over the standard deviation, of the window around each pixel."""
        mean = self._average(images)
        variance = (self._average(images.square()) - mean.square()).clamp(min=0)
        return (images - mean) / (variance + 1e-6).sqrt()

    def _average(self, x: Tensor) -> Tensor:
        """Mean of the window around each pixel, as far as it lies inside.

        From sums of 1, 2, 4, ... neighbours, rows first: 20 additions a pixel for a window of 47,
        where ``avg_pool2d`` takes 94 and a ``cumsum`` is not deterministic on a GPU.
        """
        inside = x.new_ones(1, 1, *x.shape[-2:])
        for dim in (-2, -1):
            x, inside = (_window_sums(y, self.window, dim) for y in (x, inside))
        return x / inside

    def forward(self, features: Tensor, images: Tensor, mask: Tensor) -> Tensor:
        """L1 of the masked pixels.

        Args:
            features (Tensor): Shape (B, in_channels, h, w), one entry a patch.
            images (Tensor): Shape (B, image_channels, H, W).
            mask (Tensor): Shape (B, h, w).

        Returns:
            Tensor: Mean over masked pixels and channels, a scalar.
        """
        pixels = mask.to(features.device).repeat_interleave(self.patch_size, 1)
        pixels = pixels.repeat_interleave(self.patch_size, 2)[:, None].to(features.dtype)
        size = pixels.shape[-2:]
        target = self.normalised(images.float())[..., :size[0], :size[1]]
        error = (self.decoder(features).float() - target).abs() * pixels
        return error.sum() / (pixels.sum() * images.shape[1]).clamp(min=1)


def _window_sums(x: Tensor, window: int, dim: int) -> Tensor:
    """Sum of the ``window`` entries around each along ``dim``, with zeros beyond the border."""
    reach, length = window // 2, x.shape[dim]
    doubled = F.pad(x, (reach, reach) if dim == -1 else (0, 0, reach, reach))
    total, start, side = torch.zeros_like(x), 0, 1
    while True:
        if window & side:
            total += doubled.narrow(dim, start, length)
            start += side
        if 2 * side > window:
            return total
        rest = doubled.shape[dim] - side
        doubled = doubled.narrow(dim, 0, rest) + doubled.narrow(dim, side, rest)
        side *= 2
