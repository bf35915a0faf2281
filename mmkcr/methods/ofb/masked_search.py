"""A search whose features are kept rich by masked image modelling (OFB, section 3.4)."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce, get_dist_info
from torch import Tensor, nn

from mmkcr.core import Axis
from mmkcr.methods.search.search_model import SearchModel
from mmkcr.models.tasks import find_backbone, search_space
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
            grid (Sequence[int]): Rows and columns of the patches.
            generator (torch.Generator): Of the CPU, in the same state on every rank.
            sizes (Tensor, optional): Height and width of this rank's images in pixels, (batch, 2).
                Defaults to None: all of the grid.

        Returns:
            Tensor: Masked patches, (batch, rows, columns), bool.
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
            tokens (Tensor): (B, N, C); the last h * w of them are in rows.
            hw (Sequence[int]): Rows h and columns w of the tokens.
            mask (Tensor): Masked patches, (B, rows, columns), bool.
            finer (int): Tokens along a side of a patch.
        """
        fine = _enlarge(mask, finer, hw).flatten(1)
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

        Of features (B, in_channels, h, w) and masks (B, h, w), which have an entry a patch, and
        images (B, image_channels, H, W); ``sizes`` as in :meth:`draw`.
        """
        inside = None if sizes is None else _inside(
            sizes.to(images.device), images.shape[-2:], 1)[:, None].float()
        pixels = _enlarge(mask.to(features.device), self.patch_size, images.shape[-2:])[:, None]
        # stages round up, so the last patches may reach beyond the image: crop to what both have
        height, width = pixels.shape[-2:]
        pixels = pixels.to(features.dtype)
        if inside is not None:
            pixels = pixels * inside[..., :height, :width].to(features.dtype)
        target = self.normalised(images.float(), inside)[..., :height, :width]
        decoded = self.decoder(features)[..., :height, :width]  # (B, C, H, W)
        error = (decoded.float() - target).abs() * pixels
        return error.sum() / (pixels.sum() * images.shape[1]).clamp(min=1)


@MODELS.register_module()
class MaskedSearchModel(SearchModel):
    """A :class:`SearchModel` that masks patches and adds ``loss_reconstruction``.

    Task loss and reconstruction come from the same forward pass. The reconstruction loss is scaled
    to the size of the task loss, as in the public code. Which patches are masked depends only on
    the noise's seed and step. The mask token is sliced and scaled with its width.

    Args:
        *args, **kwargs: See :class:`SearchModel`.
        reconstruction (dict, optional): See :class:`MaskedImageHead`; without ``type``. Defaults to
            None: an ordinary search.
        reconstruction_weight (float): Size of the reconstruction loss as a
            share of the task's. Defaults to 1.
        end_when_decided (bool): Whether masking ends when the last size is decided, as the public
            code does; in the paper's algorithm 1 it continues. Defaults to True.
    """

    def __init__(self, *args: Any, reconstruction: dict | None = None,
                 reconstruction_weight: float = 1., end_when_decided: bool = True,
                 **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.reconstruction_weight = reconstruction_weight
        self.end_when_decided = end_when_decided
        self.reconstruction = None if reconstruction is None else MaskedImageHead(**reconstruction)
        if self.reconstruction is not None:
            backbone = find_backbone(self.architecture)
            if not hasattr(backbone, 'last_norm'):  # Swin has it only with its last output
                outputs = list(getattr(backbone, 'out_indices', ()))
                raise ValueError(
                    'expected an `OFBVisionTransformer`, or an `OFBSwinTransformer` that gives its '
                    f'last output, for a `reconstruction`, found `{type(backbone).__name__}` with '
                    f'`out_indices={outputs}`')
            site = search_space(self.architecture).sites[backbone.embedding_site]
            site.attached.append(Axis(self.reconstruction, 'mask_token', folds=True))

    def forward(self, inputs: Tensor, data_samples: list | None = None,
                mode: str = 'tensor') -> Any:
        """Like :meth:`SearchModel.forward`, with the reconstruction in mode ``'loss'``."""
        head = self.reconstruction
        ended = self.end_when_decided and all(gate.decided for gate in self.gates().values())
        if mode != 'loss' or head is None or ended:
            return super().forward(inputs, data_samples, mode)
        # the first call counts MACs by a forward of its own, which must run unmasked
        self.macs_model(tuple(inputs.shape[1:]))
        seed, step = self._noise_state
        generator = torch.Generator().manual_seed(seed * 2**31 + step)
        sizes = _image_sizes(inputs, data_samples)
        with self._masked(generator, sizes) as seen:
            losses = super().forward(inputs, data_samples, mode)
        mask = seen['mask']
        features = find_backbone(self.architecture).token_map(seen['tokens'], mask.shape[1:])
        error = head(features, inputs, mask, sizes)
        # task loss over reconstruction error: one factor for all ranks, so that their gradients are
        # of one loss
        means = torch.stack([self.parse_losses(seen['losses'])[0].detach(), error.detach()])
        all_reduce(means, 'mean')
        balance = self.reconstruction_weight * means[0] / means[1].clamp(min=1e-6)
        losses['loss_reconstruction'] = error * balance
        losses['reconstruction_error'] = error.detach()
        return losses

    def _added_losses(self) -> list[str]:
        return super()._added_losses() + ['loss_reconstruction'] * (self.reconstruction is not None)

    def end_search(self) -> None:
        """Freeze the reconstruction, for whose gradients a distributed wrapper would wait."""
        if self.reconstruction is not None and self.end_when_decided:
            self.reconstruction.requires_grad_(False)

    @contextmanager
    def _masked(self, generator: torch.Generator, sizes: Tensor | None) -> Iterator[dict]:
        """Hide tokens in the forward within the block; collect mask, tokens and task losses."""
        head, backbone, seen = self.reconstruction, find_backbone(self.architecture), {}
        # tokens along a side of a masked patch; stages of Swin round sizes up, so patches do too
        finer = max(1, head.patch_size // backbone.patch_embed.projection.stride[0])

        def hide_patches(_: Any, __: Any, out: tuple) -> tuple:  # (B, N, C), (h, w)
            tokens, seen['hw'] = out
            seen['mask'] = head.draw(len(tokens), [-(-side // finer) for side in seen['hw']],
                                     generator, sizes)
            # before the position embedding is added (masked tokens keep it), or else after it
            return (hidden(tokens) if head.keep_position else tokens, seen['hw'])

        def hidden(tokens: Tensor) -> Tensor:
            return head.hide(tokens, seen['hw'], seen['mask'], finer)

        with ExitStack() as hooks:
            # hosts add class tokens and positions between the embedding and the first block
            hooks.enter_context(backbone.patch_embed.register_forward_hook(hide_patches))
            if not head.keep_position:
                hooks.enter_context(backbone.drop_after_pos.register_forward_pre_hook(
                    lambda _, args: (hidden(args[0]), )))
            hooks.enter_context(backbone.last_norm.register_forward_hook(
                lambda _, __, out: seen.update(tokens=out)))
            # a copy of the task's losses, as the wrapper adds its own terms to the same dict
            hooks.enter_context(self.architecture.register_forward_hook(
                lambda _, __, out: seen.update(losses=dict(out))))
            yield seen


def _image_sizes(inputs: Tensor, data_samples: list | None) -> Tensor | None:
    """Height and width (B, 2) of images padded to one size; None if none was padded.

    Only the hosts' own padding (``pad_shape``) is recognised, which is below and to the right.
    """
    if not data_samples or not all('pad_shape' in sample for sample in data_samples):
        return None
    sizes = torch.tensor([sample.img_shape[:2] for sample in data_samples])
    return None if (sizes == torch.tensor(inputs.shape[-2:])).all() else sizes


def _inside(sizes: Tensor, grid: Sequence[int], unit: int) -> Tensor:
    """Which cells (B, rows, columns) of a grid begin inside their image, for sizes (B, 2)."""
    rows, columns = (torch.arange(side, device=sizes.device) * unit for side in grid)
    return (rows[:, None] < sizes[:, 0, None, None]) & (columns < sizes[:, 1, None, None])


def _enlarge(mask: Tensor, times: int, size: Sequence[int]) -> Tensor:
    """Enlarge every entry of a mask (B, h, w) to a square of ``times``, cropped to a size."""
    fine = mask.repeat_interleave(times, 1).repeat_interleave(times, 2)
    return fine[:, :size[0], :size[1]]
