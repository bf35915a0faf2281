"""Progressive masked image modelling of Once-for-Both (section 3.4)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.dist import get_dist_info
from torch import Tensor, nn

from mmkcr.registry import MODELS


@MODELS.register_module()
class MaskedImageHead(nn.Module):
    r"""Reconstructs masked patches from the normalised tokens of the same forward pass.

    A 1x1 convolution and a pixel shuffle predict pixels. The loss is L1 on the masked pixels; its
    target is the image normalised by the mean and standard deviation of the window around each
    pixel. In a padded batch of images of several sizes, as detectors have it, the padding below
    and to the right of an image is neither masked nor used.

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

    def __init__(self, in_channels: int, patch_size: int = 16, image_channels: int = 3,
                 window: int = 47, mask_ratio: float = 0.01, token_channels: int | None = None,
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

    def draw(self, batch: int, grid: Sequence[int], generator: torch.Generator,
             sizes: Tensor | None = None) -> Tensor:
        """Draw masked patches, the same share of every image.

        The draw covers the batches of all ranks, whose samples interleave, so that several
        processes mask the same patches as one process would.

        Args:
            batch (int): Images of this rank.
            grid (Sequence[int]): Rows and columns of patches.
            generator (torch.Generator): A CPU generator, in the same state on every rank.
            sizes (Tensor, optional): Height and width of every image, shape (batch, 2). Defaults
                to None: all of the grid is image.

        Returns:
            Tensor: Boolean, shape (batch, rows, columns).
        """
        rows, columns = grid
        rank, ranks = get_dist_info()
        order = torch.rand(batch * ranks, rows * columns, generator=generator)[rank::ranks]
        inside = torch.ones(batch, rows * columns, dtype=torch.bool) if sizes is None else \
            _inside(sizes.cpu(), grid, self.patch_size).flatten(1)
        counts = [max(1, round(self.mask_ratio * patches)) if self.mask_ratio > 0 else 0
                  for patches in inside.sum(1).tolist()]
        # rank of every patch within its image; patches of the padding come last, as 2 > rand
        ranked = order.masked_fill(~inside, 2.).argsort(1).argsort(1)
        return (ranked < torch.tensor(counts)[:, None]).view(batch, rows, columns)

    def hide(self, tokens: Tensor, hw: Sequence[int], mask: Tensor, finer: int) -> Tensor:
        """Put the mask token in place of masked tokens.

        Args:
            tokens (Tensor): Shape (B, N, C), the last h * w of N tokens in rows.
            hw (Sequence[int]): h and w.
            mask (Tensor): See :meth:`draw`.
            finer (int): Tokens along a side of a patch.
        """
        fine = _spread(mask, finer, hw).flatten(1)
        # tokens in front (class token) are never masked
        extra = tokens.shape[1] - fine.shape[1]
        fine = F.pad(fine, (extra, 0)).to(tokens.device)
        return torch.where(fine[..., None], self.mask_token.to(tokens.dtype), tokens)

    def normalised(self, images: Tensor, inside: Tensor | None = None) -> Tensor:
        """Images (B, C, H, W) less the mean, over the deviation, of the window around each pixel.

        ``inside`` (B, 1, H, W) is 1 where there is image, by default everywhere.
        """
        if inside is None:
            inside = images.new_ones(1, 1, *images.shape[-2:])
        mean = self._average(images, inside)
        variance = (self._average(images.square(), inside) - mean.square()).clamp(min=0)
        return (images - mean) / (variance + 1e-6).sqrt()

    def _average(self, x: Tensor, inside: Tensor) -> Tensor:
        """Mean of the window around each pixel, as far as it lies inside."""
        side, reach, x = self.window, self.window // 2, x * inside
        for kernel, padding in (((side, 1), (reach, 0)), ((1, side), (0, reach))):
            # the padding's zeros count as pixels, in both means alike
            x, inside = (F.avg_pool2d(y, kernel, 1, padding) for y in (x, inside))
        return x / inside.clamp(min=1 / side**2)

    def forward(self, features: Tensor, images: Tensor, mask: Tensor,
                sizes: Tensor | None = None) -> Tensor:
        """L1 loss, the mean over masked pixels and channels.

        Args:
            features (Tensor): Shape (B, in_channels, h, w), one entry a patch.
            images (Tensor): Shape (B, image_channels, H, W).
            mask (Tensor): Shape (B, h, w).
            sizes (Tensor, optional): See :meth:`draw`.
        """
        inside = None if sizes is None else _inside(
            sizes.to(images.device), images.shape[-2:], 1)[:, None].float()
        pixels = _spread(mask.to(features.device), self.patch_size, images.shape[-2:])[:, None]
        # stages round up, so the last patches may reach beyond the image: crop to what both have
        height, width = pixels.shape[-2:]
        pixels = pixels.to(features.dtype)
        if inside is not None:
            pixels = pixels * inside[..., :height, :width].to(features.dtype)
        target = self.normalised(images.float(), inside)[..., :height, :width]
        decoded = self.decoder(features)[..., :height, :width]  # (B, C, H, W)
        error = (decoded.float() - target).abs() * pixels
        return error.sum() / (pixels.sum() * images.shape[1]).clamp(min=1)


def _inside(sizes: Tensor, grid: Sequence[int], unit: int) -> Tensor:
    """Which cells (B, rows, columns) of a grid begin inside their image, for sizes (B, 2)."""
    rows, columns = (torch.arange(side, device=sizes.device) * unit for side in grid)
    return (rows[:, None] < sizes[:, 0, None, None]) & (columns < sizes[:, 1, None, None])


def _spread(mask: Tensor, times: int, size: Sequence[int]) -> Tensor:
    """Enlarge every entry of a mask (B, h, w) to a square of ``times``, cropped to a size."""
    fine = mask.repeat_interleave(times, 1).repeat_interleave(times, 2)
    return fine[:, :size[0], :size[1]]
