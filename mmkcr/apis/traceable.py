"""Host functions that compute shapes in Python numbers, in a form that can be traced.

``torch.onnx`` follows tensors, and shapes as long as they are integers: a
division of floats, a ``math.ceil`` or a loop over slices is frozen at the
traced size. Inside :func:`traceable` four functions compute the same from
integers.
"""

import contextlib
from typing import Any, Iterator, Optional, Tuple
from unittest import mock

import torch
import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import AdaptivePadding
from mmpretrain.models.backbones.mobilevit import MobileVitBlock
from mmpretrain.models.utils import ShiftWindowMSA
from torch import Tensor, nn


def window_reverse(windows: Tensor, height: int, width: int, window_size: int) -> Tensor:
    """Windows (B * nW, w, w, C) to maps (B, H, W, C)."""
    rows, columns = height // window_size, width // window_size
    x = windows.reshape(-1, rows, columns, window_size, window_size, windows.shape[-1])
    return x.transpose(2, 3).reshape(-1, height, width, windows.shape[-1])


def attention_mask(hw_shape: Tuple[int, int], window_size: int, shift_size: int,
                   device: Optional[torch.device] = None) -> Optional[Tensor]:
    """Mask (nW, w * w, w * w) of the tokens that a cyclic shift made neighbours."""
    if shift_size <= 0:
        return None
    rows, columns = (_regions(length, window_size, shift_size, device) for length in hw_shape)
    windows = ShiftWindowMSA.window_partition(
        (3 * rows[:, None] + columns[None, :])[None, :, :, None], window_size)
    regions = windows.reshape(-1, window_size**2)
    return -100. * (regions[:, None] != regions[:, :, None]).float()


def _regions(length: int, window_size: int, shift_size: int,
             device: Optional[torch.device]) -> Tensor:
    """0 before the last window, 1 in it, 2 in its shifted part."""
    position = torch.arange(length, device=device)
    return (position >= length - window_size).int() + (position >= length - shift_size).int()


def pad(self: AdaptivePadding, x: Tensor) -> Tensor:
    """Pad (B, C, H, W) so that the filter covers it, by nothing if it does already."""
    def missing(length: Any, kernel: int, stride: int, dilation: int) -> Any:
        outputs = (length + stride - 1) // stride
        pads = (outputs - 1) * stride + (kernel - 1) * dilation + 1 - length
        return pads.clamp(min=0) if isinstance(pads, Tensor) else max(pads, 0)

    height, width = map(missing, x.shape[-2:], self.kernel_size, self.stride, self.dilation)
    top, left = (0, 0) if self.padding == 'corner' else (height // 2, width // 2)
    return F.pad(x, (left, width - left, top, height - top))


def adaptive_average_pool(self: nn.AdaptiveAvgPool2d, x: Tensor) -> Tensor:
    """Pool (B, C, H, W) to the layer's fixed output size, by two products with averages."""
    sizes = self.output_size if isinstance(self.output_size, tuple) else (self.output_size, ) * 2
    if sizes == (1, 1):
        return F.adaptive_avg_pool2d(x, 1)
    rows, columns = (_averages(length, bins, x) for length, bins in zip(x.shape[-2:], sizes))
    return rows @ x @ columns.transpose(0, 1)


def _averages(length: Any, bins: int, like: Tensor) -> Tensor:
    """(bins, length): bin i averages floor(i length / bins) to ceil((i + 1) length / bins)."""
    position = torch.arange(length, device=like.device)[None]
    index = torch.arange(bins, device=like.device)[:, None]
    start, end = index * length // bins, ((index + 1) * length + bins - 1) // bins
    inside = ((position >= start) & (position < end)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


def mobilevit_block(self: MobileVitBlock, x: Tensor) -> Tensor:
    """A block on a map of any size: resized to whole patches, by nothing where it has them."""
    local, (rows, columns) = self.local_rep(x), self.patch_size
    batch, channels, height, width = local.shape
    down, across = (height + rows - 1) // rows, (width + columns - 1) // columns

    def resize(maps: Tensor, size: Tuple[int, int]) -> Tensor:
        return F.interpolate(maps, size=size, mode='bilinear', align_corners=False)

    maps = resize(local, (down * rows, across * columns))
    maps = maps.reshape(batch, channels, down, rows, across, columns)
    tokens = maps.permute(0, 3, 5, 2, 4, 1).reshape(batch * rows * columns, down * across, channels)
    tokens = self.global_rep(tokens)
    maps = tokens.reshape(batch, rows, columns, down, across, channels).permute(0, 5, 3, 1, 4, 2)
    maps = resize(maps.reshape(batch, channels, down * rows, across * columns), (height, width))
    out = self.conv_proj(maps)
    return out if self.conv_fusion is None else self.conv_fusion(torch.cat((x, out), 1))


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Exchange the five functions for the duration of an export."""
    with mock.patch.object(ShiftWindowMSA, 'window_reverse', staticmethod(window_reverse)), \
            mock.patch.object(ShiftWindowMSA, 'get_attn_mask', staticmethod(attention_mask)), \
            mock.patch.object(MobileVitBlock, 'forward', mobilevit_block), \
            mock.patch.object(AdaptivePadding, 'forward', pad), \
            mock.patch.object(nn.AdaptiveAvgPool2d, 'forward', adaptive_average_pool):
        yield
