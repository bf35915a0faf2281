"""From a trained model to the form that a runtime computes fastest, with equal outputs.

Optimisations that runtimes do themselves are left to them: the exporter folds batch norms into
convolutions, the runtimes fuse activations. Host layers get a form that can be traced:
``torch.onnx`` follows tensors, and follows shapes as long as they are integers. A division of
floats, a ``math.ceil`` or a loop over slices is frozen at the traced size. The methods in
:data:`TRACEABLE` compute equal values from integers. A host's class is known by its name, so that
no library is imported for a network of another.
"""

import copy
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.models.layers.norms import SlicedLayerNorm
from mmkcr.models.layers.operator_attention import OperatorAttention
from mmkcr.models.layers.plain import make_ours
from mmkcr.models.layers.selection import Put, Take, largest_group
from mmkcr.models.layers.take_over import take_over
from .runtimes import PACKAGES
from .tensor_model import TensorModel

EXPORT_RUNTIMES = ('any', *PACKAGES)
#: From this number of contiguous kept channels on, gathering them as rows is faster.
GROUPED_FROM = 16
#: Added to the scores of masked keys, so that the softmax gives 0. With the hosts' -100 it gives
#: 4e-44, a subnormal number, and products with these take 20 times as long on a CPU.
MASKED = -1000.


def prepare(model: nn.Module, runtime: str = 'any', dynamic_size: bool = False) -> TensorModel:
    """Make a copy of a model that is ready to be traced for a runtime.

    - Selections of channels get the form that is fastest in the runtime.
    - Weights that operators in place of heads derive from others are computed once.
    - Host layers that cannot be traced are replaced.

    Args:
        model (nn.Module): A backbone or task model, dense or a subnet; it is not changed.
        runtime (str): One of :data:`EXPORT_RUNTIMES`. Defaults to ``'any'``.
        dynamic_size (bool): Whether height and width may differ from the traced image. Defaults to
            False.

    Raises:
        ValueError: Another runtime.
    """
    if runtime not in EXPORT_RUNTIMES:
        raise ValueError(f'expected a runtime among {EXPORT_RUNTIMES}, found {runtime!r}')
    view = TensorModel(copy.deepcopy(model))
    make_ours(view)
    for path, module in list(view.named_modules()):
        if isinstance(module, OperatorAttention):
            module.fold()
        elif isinstance(module, SlicedLayerNorm):
            view.set_submodule(path, _split_norm(module))
        product = getattr(module, 'scaled_dot_product_attention', None)
        if isinstance(product, partial) and \
                product.func.__name__ == 'scaled_dot_product_attention_pyimpl':
            # mmpretrain's version divides by its scale, and traces a dropout that OpenVINO refuses
            module.scaled_dot_product_attention = partial(F.scaled_dot_product_attention,
                                                          scale=1 / product.keywords['scale'])
    for module in view.modules():
        if isinstance(module, (Take, Put)):  # contiguous channels are sliced in any form
            group = largest_group(module.kept, module.total)
            if module.dim == -1 and group >= GROUPED_FROM:
                module.set_form('grouped', group)
            elif module.dim == -1 and runtime == 'onnxruntime':  # measured in docs/deploy.md
                module.set_form('elements')
            else:  # rows of maps are contiguous anyway
                module.set_form('gather')
    return make_traceable(view, dynamic_size)


def selection_forms(model: nn.Module, runtime: str) -> str:
    """Forms of a model's channel selections in a runtime: ``'24 elements, 2 sliced'``."""
    counts = Counter('sliced' if module.contiguous else module.form
                     for module in prepare(model, runtime).modules()
                     if isinstance(module, (Take, Put)))
    return ', '.join(f'{count} {form}' for form, count in counts.most_common()) or 'none'


@torch.no_grad()
def _split_norm(norm: SlicedLayerNorm) -> nn.Module:
    """Split into a norm over all channels with its affine part, and a selection behind it."""
    wide = nn.LayerNorm(norm.total, norm.eps, norm.weight is not None)
    for name, values in norm.named_parameters():
        # channels that are not kept are dropped behind the norm
        getattr(wide, name).zero_()[norm.kept] = values
    return nn.Sequential(wide, Take(norm.kept, norm.total))


def window_reverse(windows: Tensor, height: int, width: int, window_size: int) -> Tensor:
    """Put windows together to maps.

    Args:
        windows (Tensor): (B * nW, w, w, C).
        height (int): Height H of the maps, a multiple of w.
        width (int): Width W of the maps, a multiple of w.
        window_size (int): Side w of a window.

    Returns:
        Tensor: Maps (B, H, W, C).
    """
    rows, columns = height // window_size, width // window_size
    # (B, rows, columns, w, w, C): swap columns and the windows' rows, so that rows of pixels meet
    x = windows.reshape(-1, rows, columns, window_size, window_size, windows.shape[-1])
    return x.transpose(2, 3).reshape(-1, height, width, windows.shape[-1])


def attention_mask(hw_shape: tuple[int, int], window_size: int, shift_size: int,
                   device: torch.device | None = None) -> Tensor | None:
    """Mask between tokens that only a cyclic shift made neighbours.

    Args:
        hw_shape (tuple[int, int]): Height and width of the map, multiples of w.
        window_size (int): Side w of a window.
        shift_size (int): Pixels of the shift, smaller than w.
        device (torch.device, optional): Of the mask. Defaults to None: PyTorch's default.

    Returns:
        Tensor, optional: (nW, w * w, w * w): 0, or :data:`MASKED` between regions; None without a
        shift.
    """
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


def host_window_reverse(layer: nn.Module, windows: Tensor, height: int, width: int) -> Tensor:
    """Put windows of mmdet's and mmseg's Swin together to maps.

    Args:
        layer (nn.Module): The attention layer, which has the side w of its windows.
        windows (Tensor): (B * nW, w, w, C).
        height (int): Height of the maps, a multiple of w.
        width (int): Width of the maps, a multiple of w.
    """
    return window_reverse(windows, height, width, layer.window_size)


def pad_map(layer: nn.Module, x: Tensor) -> Tensor:
    """Pad a map (B, C, H, W) so that a filter of mmcv's covers it, possibly by nothing."""
    def find_padding(length: Any, kernel: int, stride: int, dilation: int) -> Any:
        """Pixels that a side of a length lacks for a filter's kernel, stride and dilation."""
        outputs = (length + stride - 1) // stride  # ceil, in integers
        pads = (outputs - 1) * stride + (kernel - 1) * dilation + 1 - length
        return pads.clamp(min=0) if isinstance(pads, Tensor) else max(pads, 0)

    height, width = map(find_padding, x.shape[-2:], layer.kernel_size, layer.stride, layer.dilation)
    top, left = (0, 0) if layer.padding == 'corner' else (height // 2, width // 2)
    return F.pad(x, (left, width - left, top, height - top))


def average_pool(layer: nn.Module, x: Tensor) -> Tensor:
    """Pool (B, C, H, W) to a fixed size, as products with averages; a size None keeps its axis."""
    sizes = layer.output_size
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


def mobile_block(layer: nn.Module, x: Tensor) -> Tensor:
    """Run MobileViT's block on a map (B, C, H, W), resized to whole patches and back."""
    local, (rows, columns) = layer.local_rep(x), layer.patch_size
    batch, channels, height, width = local.shape
    down, across = (height + rows - 1) // rows, (width + columns - 1) // columns

    def resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
        return F.interpolate(maps, size=size, mode='bilinear', align_corners=False)

    maps = resize(local, (down * rows, across * columns))  # an identity if the patches fit
    maps = maps.reshape(batch, channels, down, rows, across, columns)
    # one sequence per position within a patch: (B rows columns, patches, C)
    tokens = maps.permute(0, 3, 5, 2, 4, 1).reshape(batch * rows * columns, down * across, channels)
    tokens = layer.global_rep(tokens)
    maps = tokens.reshape(batch, rows, columns, down, across, channels)
    maps = maps.permute(0, 5, 3, 1, 4, 2).reshape(batch, channels, down * rows, across * columns)
    out = layer.conv_proj(resize(maps, (height, width)))
    return out if layer.conv_fusion is None else layer.conv_fusion(torch.cat((x, out), 1))


def unfold(layer: nn.Module, x: Tensor) -> Tensor:
    """(B, C, H, W) to (B, C * k * k, tiles); tiles that do not overlap without a gather."""
    # a size may be a list, as in TNT
    sizes = [(value, ) * 2 if isinstance(value, int) else tuple(value) for value in
             (layer.kernel_size, layer.dilation, layer.padding, layer.stride)]
    (rows, columns), dilation, padding, stride = sizes
    if rows != columns or stride != (rows, columns) or padding != (0, 0) or dilation != (1, 1):
        return F.unfold(x, *sizes)
    # pixels that no whole tile covers are dropped, as unfold does
    x = x[..., :x.shape[-2] // rows * rows, :x.shape[-1] // rows * rows]
    # pixel_unshuffle has the same channel order as unfold: (C, k, k)
    return F.pixel_unshuffle(x, rows).flatten(2)


def mean_squares(layer: nn.Module, x: Tensor) -> Tensor:
    """Divide (..., *normalized_shape) by the root of the mean square, one operator in PyTorch."""
    eps = torch.finfo(x.dtype).eps if layer.eps is None else layer.eps
    dims = tuple(range(-len(layer.normalized_shape), 0))
    x = x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
    return x if layer.weight is None else x * layer.weight


#: Methods instead of those of the host, by the name of exactly this class. A trace would freeze
#: the batch of the hosts' windows.
TRACEABLE: dict[str, dict[str, Callable]] = {
    'torch.nn.modules.fold.Unfold': dict(forward=unfold),
    'torch.nn.modules.normalization.RMSNorm': dict(forward=mean_squares),
    'torch.nn.modules.pooling.AdaptiveAvgPool2d': dict(forward=average_pool),
    'mmpretrain.models.utils.attention.ShiftWindowMSA': dict(
        window_reverse=staticmethod(window_reverse), get_attn_mask=staticmethod(attention_mask)),
    'mmpretrain.models.backbones.mixmim.MixMIMBlock': dict(
        window_reverse=staticmethod(window_reverse)),
    'mmdet.models.backbones.swin.ShiftWindowMSA': dict(window_reverse=host_window_reverse),
    'mmseg.models.backbones.swin.ShiftWindowMSA': dict(window_reverse=host_window_reverse),
    'timm.layers.norm.RmsNorm': dict(forward=mean_squares),
    'timm.layers.norm.RmsNormFp32': dict(forward=mean_squares),  # the same: files are of fp32
}
#: With dynamic height and width, too. At a fixed size the hosts' own layers do less work.
TRACEABLE_AT_ANY_SIZE: dict[str, dict[str, Callable]] = {
    **TRACEABLE,
    'mmcv.cnn.bricks.transformer.AdaptivePadding': dict(forward=pad_map),
    'mmpretrain.models.backbones.mobilevit.MobileVitBlock': dict(forward=mobile_block),
}


def make_traceable(module: nn.Module, dynamic_size: bool = True) -> nn.Module:
    """Replace the host layers inside a module that cannot be traced, in place.

    Args:
        module (nn.Module): A model or a part of one.
        dynamic_size (bool): Whether height and width may differ from the traced image. Defaults to
            True.

    Returns:
        nn.Module: The module, or its replacement where it is such a layer itself.
    """
    for name, child in list(module._modules.items()):
        if child is not None:
            module._modules[name] = make_traceable(child, dynamic_size)
    kind, table = type(module), TRACEABLE_AT_ANY_SIZE if dynamic_size else TRACEABLE
    methods = table.get(f'{kind.__module__}.{kind.__qualname__}')
    return module if methods is None else take_over(
        type(f'Traceable{kind.__name__}', (kind, ), methods), module)
