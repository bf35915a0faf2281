"""Physical slicing of parameters, layers and optimizer state.

Everything is built on one rule: keep ``index[d]`` along dimension ``d`` of a
parameter, and the same entries of every optimizer moment of its shape.
"""

from typing import Dict, Mapping, Optional

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

Index = Optional[Tensor]


def take(tensor: Tensor, index: Mapping[int, Index]) -> Tensor:
    """Keep the given entries of a tensor along some of its dimensions.

    Args:
        tensor (Tensor): Any tensor.
        index (Mapping[int, Tensor | None]): Kept positions (int64) by
            dimension; ``None`` keeps a dimension whole.

    Returns:
        Tensor: A new contiguous tensor that shares no memory with the input.
    """
    out = tensor.detach()
    for dim, keep in index.items():
        if keep is not None:
            out = out.index_select(dim, keep.to(out.device))
    return out.clone() if out.data_ptr() == tensor.data_ptr() else out


def slice_parameter(module: nn.Module,
                    name: str,
                    index: Mapping[int, Index],
                    optimizer: Optional[Optimizer] = None) -> None:
    """Replace ``module.<name>`` (a parameter or buffer) by its kept entries.

    Args:
        module (nn.Module): Owner of the parameter.
        name (str): Attribute name; an absent or ``None`` one is left alone.
        index (Mapping[int, Tensor | None]): As in :func:`take`.
        optimizer (Optimizer, optional): Its parameter groups are pointed to
            the new parameter, and every state tensor of the old parameter's
            shape (Adam's moments, momentum buffers) is sliced alike, so that
            the next step is the one the kept entries would have taken.
    """
    old = getattr(module, name, None)
    if old is None:
        return
    if not isinstance(old, nn.Parameter):
        setattr(module, name, take(old, index))
        return
    new = nn.Parameter(take(old, index), requires_grad=old.requires_grad)
    if old.grad is not None:
        new.grad = take(old.grad, index)
    setattr(module, name, new)
    if optimizer is not None:
        _swap_in_optimizer(optimizer, old, new, index)


def _swap_in_optimizer(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter,
                       index: Mapping[int, Index]) -> None:
    for group in optimizer.param_groups:
        group['params'] = [new if p is old else p for p in group['params']]
    if old in optimizer.state:
        state: Dict = optimizer.state.pop(old)
        optimizer.state[new] = {
            key: take(value, index)
            if torch.is_tensor(value) and value.shape == old.shape else value
            for key, value in state.items()
        }


def slice_linear(linear: nn.Linear,
                 in_index: Index = None,
                 out_index: Index = None,
                 optimizer: Optional[Optimizer] = None) -> nn.Linear:
    """Slice a linear layer in place.

    Args:
        linear (nn.Linear): Weight of shape (out, in).
        in_index (Tensor, optional): Kept input features.
        out_index (Tensor, optional): Kept output features.
        optimizer (Optimizer, optional): See :func:`slice_parameter`.

    Returns:
        nn.Linear: The same layer.
    """
    slice_parameter(linear, 'weight', {0: out_index, 1: in_index}, optimizer)
    slice_parameter(linear, 'bias', {0: out_index}, optimizer)
    linear.out_features, linear.in_features = linear.weight.shape
    return linear


def slice_conv(conv: _ConvNd,
               in_index: Index = None,
               out_index: Index = None,
               optimizer: Optional[Optimizer] = None) -> _ConvNd:
    """Slice a dense or a depthwise convolution in place.

    Args:
        conv (nn.Conv1d | nn.Conv2d | nn.Conv3d): ``groups`` of 1, or equal to
            both channel counts (depthwise).
        in_index (Tensor, optional): Kept input channels.
        out_index (Tensor, optional): Kept output channels; for a depthwise
            convolution either index stands for both.
        optimizer (Optimizer, optional): See :func:`slice_parameter`.

    Returns:
        nn.Module: The same layer.

    Raises:
        ValueError: The convolution is grouped but not depthwise, or the two
            indices of a depthwise convolution differ.
    """
    if conv.groups > 1:
        if not conv.groups == conv.in_channels == conv.out_channels:
            raise ValueError('expected a convolution with `groups` 1 or depthwise, found '
                             f'groups={conv.groups}, in_channels={conv.in_channels}, '
                             f'out_channels={conv.out_channels}')
        if in_index is not None and out_index is not None and not torch.equal(
                in_index, out_index):
            raise ValueError('expected one index for a depthwise convolution, found two '
                             f'of {len(in_index)} and {len(out_index)} channels that differ')
        out_index = in_index if out_index is None else out_index
        in_index = None
    transposed = conv.transposed
    slice_parameter(conv, 'weight', {0: in_index, 1: out_index} if transposed else {
        0: out_index,
        1: in_index
    }, optimizer)
    slice_parameter(conv, 'bias', {0: out_index}, optimizer)
    kept_out, kept_in = conv.weight.shape[:2] if not transposed else conv.weight.shape[1::-1]
    conv.out_channels = kept_out
    if conv.groups > 1:
        conv.groups = conv.in_channels = kept_out
    else:
        conv.in_channels = kept_in
    return conv


def slice_norm(norm: nn.Module,
               index: Tensor,
               optimizer: Optional[Optimizer] = None) -> nn.Module:
    """Slice a normalisation layer's channels in place.

    The statistics of a sliced ``LayerNorm`` are those of the kept channels; a
    layer that keeps full-width statistics is
    :class:`mmkcr.models.layers.SlicedLayerNorm`.

    Args:
        norm (nn.LayerNorm | nn.BatchNorm*d): Layer over one channel axis.
        index (Tensor): Kept channels.
        optimizer (Optimizer, optional): See :func:`slice_parameter`.

    Returns:
        nn.Module: The same layer.

    Raises:
        TypeError: Another layer, or a ``LayerNorm`` over several axes.
    """
    names = ['weight', 'bias']
    if isinstance(norm, _BatchNorm):
        names += ['running_mean', 'running_var']
        norm.num_features = len(index)
    elif isinstance(norm, nn.LayerNorm) and len(norm.normalized_shape) == 1:
        norm.normalized_shape = (len(index), )
    else:
        raise TypeError('expected a BatchNorm or a LayerNorm over one axis, found '
                        f'`{norm.__class__.__name__}`')
    for name in names:
        slice_parameter(norm, name, {0: index}, optimizer)
    return norm
