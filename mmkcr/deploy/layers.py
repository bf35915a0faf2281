"""Host layers in a form that can be traced and that runtimes compute fast.

``torch.onnx`` follows tensors, and follows shapes as long as they are integers. A division of
floats, a ``math.ceil`` or a loop over slices is frozen at the traced size. These subclasses
compute the same from integers. :func:`traceable` replaces the hosts' layers by them. A host's
class is known by its name, so that no library is imported for a network of another.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.models.layers.take_over import take_over

#: Added to the scores of masked keys, so that the softmax gives 0. With the hosts' -100 it gives
#: 4e-44, a subnormal number, and products with these take 20 times as long on a CPU.
MASKED = -1000.


def window_reverse(windows: Tensor, height: int, width: int, window_size: int) -> Tensor:
    """Windows (B * nW, w, w, C) to maps (B, H, W, C)."""
    rows, columns = height // window_size, width // window_size
    # (B, rows, columns, w, w, C): swap columns and the windows' rows, so that rows of pixels meet
    x = windows.reshape(-1, rows, columns, window_size, window_size, windows.shape[-1])
    return x.transpose(2, 3).reshape(-1, height, width, windows.shape[-1])


def attention_mask(hw_shape: tuple[int, int], window_size: int, shift_size: int,
                   device: torch.device | None = None) -> Tensor | None:
    """Mask (nW, w * w, w * w) between tokens that only a cyclic shift made neighbours."""
    if shift_size <= 0:
        return None
    def along(length: int) -> Tensor:
        """0 before the last window, 1 in it, 2 in its shifted part."""
        position = torch.arange(length, device=device)
        return (position >= length - window_size).int() + (position >= length - shift_size).int()

    # (windows along the side, w); with 3 regions each, 3 * row + column numbers all 9
    rows, columns = (along(length).view(-1, window_size) for length in hw_shape)
    regions = 3 * rows[:, None, :, None] + columns[None, :, None, :]
    regions = regions.reshape(-1, window_size**2)
    # (nW, w w, w w), 0 within a region
    return MASKED * (regions[:, None] != regions[:, :, None]).float()


class StaticWindows:
    """Mixin for the windows of mmpretrain's MixMIM, whose batch a trace would freeze."""

    window_reverse = staticmethod(window_reverse)


class ShiftedWindows(StaticWindows):
    """The same for mmpretrain's Swin, with masks of integers."""

    get_attn_mask = staticmethod(attention_mask)


class HostWindows:
    """Mixin for the windows of mmdet's and mmseg's Swin, whose batch a trace would freeze."""

    def window_reverse(self, windows: Tensor, height: int, width: int) -> Tensor:
        """Windows (B * nW, w, w, C) to maps (B, H, W, C)."""
        return window_reverse(windows, height, width, self.window_size)


class TraceablePadding:
    """Mixin for mmcv's padding of a map so that a filter covers it."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad (B, C, H, W) as needed, possibly by nothing."""
        def missing(length: Any, kernel: int, stride: int, dilation: int) -> Any:
            outputs = (length + stride - 1) // stride  # ceil, in integers
            pads = (outputs - 1) * stride + (kernel - 1) * dilation + 1 - length
            return pads.clamp(min=0) if isinstance(pads, Tensor) else max(pads, 0)

        height, width = map(missing, x.shape[-2:], self.kernel_size, self.stride, self.dilation)
        top, left = (0, 0) if self.padding == 'corner' else (height // 2, width // 2)
        return F.pad(x, (left, width - left, top, height - top))


class TraceableAveragePool:
    """Mixin for pooling to a fixed output size; an axis of size None keeps its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Pool (B, C, H, W), as two products with averages except for a single output value."""
        sizes = self.output_size
        sizes = (sizes, sizes) if isinstance(sizes, int) else tuple(sizes)  # may be a list
        if sizes == (1, 1):
            return F.adaptive_avg_pool2d(x, 1)
        (height, width), (rows, columns) = x.shape[-2:], sizes
        if rows is not None:
            x = _averages(height, rows, x) @ x  # (rows, H) @ (B, C, H, W)
        if columns is not None:
            x = x @ _averages(width, columns, x).transpose(0, 1)  # (..., W) @ (W, columns)
        return x


def _averages(length: Any, bins: int, like: Tensor) -> Tensor:
    """(bins, length): bin i averages floor(i length / bins) to ceil((i + 1) length / bins)."""
    position = torch.arange(length, device=like.device)[None]
    index = torch.arange(bins, device=like.device)[:, None]
    start, end = index * length // bins, ((index + 1) * length + bins - 1) // bins
    inside = ((position >= start) & (position < end)).to(like.dtype)
    return inside / inside.sum(1, keepdim=True)


class WholePatches:
    """Mixin for MobileViT's block, which resizes maps to whole patches."""

    def forward(self, x: Tensor) -> Tensor:
        """A map (B, C, H, W) of any size; the resizing is an identity if the patches fit."""
        local, (rows, columns) = self.local_rep(x), self.patch_size
        batch, channels, height, width = local.shape
        down, across = (height + rows - 1) // rows, (width + columns - 1) // columns

        def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
            return F.interpolate(maps, size=size, mode='bilinear', align_corners=False)

        maps = resize(local, (down * rows, across * columns))
        maps = maps.reshape(batch, channels, down, rows, across, columns)
        # one sequence per position within a patch: (B rows columns, patches, C)
        tokens = maps.permute(0, 3, 5, 2, 4, 1).reshape(
            batch * rows * columns, down * across, channels)
        tokens = self.global_rep(tokens)
        maps = tokens.reshape(batch, rows, columns, down, across, channels)
        maps = maps.permute(0, 5, 3, 1, 4, 2).reshape(batch, channels, down * rows,
                                                      across * columns)
        out = self.conv_proj(resize(maps, (height, width)))
        return out if self.conv_fusion is None else self.conv_fusion(torch.cat((x, out), 1))


class TileUnfold:
    """Mixin for ``Unfold`` into tiles that do not overlap, without the gather of exporters."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C * k * k, tiles)."""
        # a size may be a list, as in TNT
        sizes = [(value, ) * 2 if isinstance(value, int) else tuple(value) for value in
                 (self.kernel_size, self.stride, self.padding, self.dilation)]
        (rows, columns), stride, padding, dilation = sizes
        if rows != columns or stride != (rows, columns) or padding != (0, 0) or dilation != (1, 1):
            return super().forward(x)
        # what no whole tile covers is dropped, as unfold does
        x = x[..., :x.shape[-2] // rows * rows, :x.shape[-1] // rows * rows]
        # pixel_unshuffle has the same channel order as unfold: (C, k, k)
        return F.pixel_unshuffle(x, rows).flatten(2)


class MeanSquares:
    """Mixin for norms by the root of the mean square, which are one operator in PyTorch only."""

    def forward(self, x: Tensor) -> Tensor:
        """Divide (..., *normalized_shape) by the root over the last dimensions."""
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        dims = tuple(range(-len(self.normalized_shape), 0))
        x = x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
        return x if self.weight is None else x * self.weight


#: A mixin that comes before the host's class, by the name of exactly this class.
TRACEABLE: dict[str, type] = {
    'torch.nn.modules.fold.Unfold': TileUnfold,
    'torch.nn.modules.normalization.RMSNorm': MeanSquares,
    'torch.nn.modules.pooling.AdaptiveAvgPool2d': TraceableAveragePool,
    'mmpretrain.models.utils.attention.ShiftWindowMSA': ShiftedWindows,
    'mmpretrain.models.backbones.mixmim.MixMIMBlock': StaticWindows,
    'mmdet.models.backbones.swin.ShiftWindowMSA': HostWindows,
    'mmseg.models.backbones.swin.ShiftWindowMSA': HostWindows,
    'timm.layers.norm.RmsNorm': MeanSquares,
    'timm.layers.norm.RmsNormFp32': MeanSquares,  # the same: files are of fp32
}
#: With dynamic height and width, too. At a fixed size the hosts' own layers do less work.
TRACEABLE_AT_ANY_SIZE: dict[str, type] = {
    **TRACEABLE,
    'mmcv.cnn.bricks.transformer.AdaptivePadding': TraceablePadding,
    'mmpretrain.models.backbones.mobilevit.MobileVitBlock': WholePatches,
}


def traceable(module: nn.Module, dynamic_size: bool = True) -> nn.Module:
    """Replace the host layers inside a module that cannot be traced, in place.

    With ``dynamic_size`` height and width are not those of the trace. Returns the module, or what
    replaces itself.
    """
    for name, child in list(module._modules.items()):
        if child is not None:
            module._modules[name] = traceable(child, dynamic_size)
    kind, mixins = type(module), TRACEABLE_AT_ANY_SIZE if dynamic_size else TRACEABLE
    mixin = mixins.get(f'{kind.__module__}.{kind.__qualname__}')
    if mixin is None:
        return module
    return take_over(type(f'Traceable{kind.__name__}', (mixin, kind), {}), module)
