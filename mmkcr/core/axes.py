"""The tensor axes along which a site's units lie, sliced together and scaled together.

Nothing else is needed to slice a site (weights and optimizer moments), to fold a mask into the
weights, to count MACs or to build a subnet.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

# Names of optimizer state that is linear, or quadratic, in the gradient.
_LINEAR = ('exp_avg', 'momentum_buffer')
_QUADRATIC = ('exp_avg_sq', 'max_exp_avg_sq', 'sum', 'square_avg')


class Axis(NamedTuple):
    """One axis of one parameter or buffer along which a site's units lie.

    The axis consists of ``repeats`` blocks (3 for fused queries, keys and values) of all units,
    each with ``inner`` consecutive entries (4 for unfolded 2 x 2 neighbours).

    Args:
        module (nn.Module): Owner of the parameter.
        name (str): Attribute name. An absent or ``None`` attribute is left alone.
        dim (int): The axis. Defaults to 0.
        folds (bool): Whether it can take a scale of the units as a factor. Defaults to False.
        repeats, inner (int): Blocks, and entries per unit, see above. Default to 1.
        per (int): Number of units that share an entry, such as the channels of a head that share
            one position bias: unit u lies at entry u // per. Defaults to 1.
        before (tuple[int | nn.Module, ...], optional): For an axis that reads the concatenated
            outputs of several layers: the parts in front of the units, each as a number of entries
            or as the layer that writes it. Such an axis must be listed before the axes of these
            writers. Defaults to None: the whole axis belongs to the units.
        writer (nn.Module, optional): The layer that writes the units. Needed with ``before``.
    """

    module: nn.Module
    name: str
    dim: int = 0
    folds: bool = False
    repeats: int = 1
    inner: int = 1
    per: int = 1
    before: tuple[int | nn.Module, ...] | None = None
    writer: nn.Module | None = None

    @property
    def value(self) -> Tensor | None:
        """The parameter or buffer, if there is one."""
        return getattr(self.module, self.name, None)

    @property
    def span(self) -> tuple[int, int]:
        """First position of the present units on the axis, and the position after the last."""
        if self.before is None:
            return 0, self.value.shape[self.dim]
        start = sum(layer if isinstance(layer, int) else outputs_of(layer) for layer in self.before)
        return start, start + outputs_of(self.writer)

    def entries(self, units: Tensor) -> Tensor:
        """Positions on the axis of some of the present units, block by block, in their order."""
        if self.per > 1:
            return torch.unique(units // self.per)
        start, end = self.span
        block = (end - start) // self.repeats
        offsets = torch.arange(self.repeats, device=units.device) * block + start
        inner = torch.arange(self.inner, device=units.device)
        # (repeats, units, inner): block offset + unit * inner + entry within the unit
        return (offsets[:, None, None] + units[None, :, None] * self.inner + inner).flatten()

    def kept_entries(self, units: Tensor) -> Tensor:
        """Positions on the axis that stay: of kept units, and all outside the units' span."""
        (start, end), length = self.span, self.value.shape[self.dim]
        sides = [torch.arange(*side, device=units.device) for side in ((0, start), (end, length))]
        return torch.cat([sides[0], self.entries(units), sides[1]])


def slice_axes(axes: Iterable[Axis], units: Tensor, optimizer: Optimizer | None = None) -> None:
    """Keep some of a site's present units in all its parameters and buffers.

    Args:
        axes (Iterable[Axis]): Where the units lie.
        units (Tensor): Positions among the present units, (k,), int64, ascending.
        optimizer (Optimizer, optional): Its parameter groups hold the new parameters afterwards,
            and state tensors of a parameter's shape (moments, momentum buffers) are sliced with
            it. Defaults to None.
    """
    for axis in axes:
        old = axis.value
        if old is None:
            continue
        index = axis.kept_entries(units.to(old.device))
        new = old.detach().index_select(axis.dim, index)
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(new, requires_grad=old.requires_grad)
            if old.grad is not None:
                new.grad = old.grad.index_select(axis.dim, index)
            if optimizer is not None:
                _swap_in_optimizer(optimizer, old, new, axis.dim, index)
        setattr(axis.module, axis.name, new)
        sync_sizes(axis.module)


def _swap_in_optimizer(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter, dim: int,
                       index: Tensor) -> None:
    for group in optimizer.param_groups:
        group['params'] = [new if p is old else p for p in group['params']]
    if old in optimizer.state:  # state of another shape, such as the step count, stays
        optimizer.state[new] = {
            key: value.index_select(dim, index)
            if torch.is_tensor(value) and value.shape == old.shape else value
            for key, value in optimizer.state.pop(old).items()
        }


def scale_axes(axes: Iterable[Axis], scale: Tensor, optimizer: Optimizer | None = None) -> None:
    """Multiply a scale of the units into the parameters that take it.

    Args:
        axes (Iterable[Axis]): Where the units lie; axes that do not fold are left alone.
        scale (Tensor): An entry for every present unit, (units,), never 0.
        optimizer (Optimizer, optional): Gradients and its first moments are divided by the scale,
            second moments by its square. Defaults to None.
    """
    for axis in axes:
        value = axis.value
        if value is None or not axis.folds:
            continue
        shape = [1] * value.ndim
        shape[axis.dim] = -1
        factor = scale.detach().to(value).repeat_interleave(axis.inner).repeat(axis.repeats)
        factor = factor.view(shape)
        value.data.mul_(factor)
        if value.grad is not None:
            value.grad.div_(factor)
        state = optimizer.state.get(value, {}) if optimizer is not None else {}
        for power, names in ((1, _LINEAR), (2, _QUADRATIC)):
            for name in names:
                if torch.is_tensor(state.get(name)) and state[name].shape == value.shape:
                    state[name].div_(factor**power)


def outputs_of(layer: nn.Module) -> int:
    """Output channels of a linear layer or convolution."""
    return layer.weight.shape[1 if _transposed(layer) else 0]


def along_outputs(layer: nn.Module, folds: bool = False, **layout: int) -> list[Axis]:
    """Axes of all tensors of a layer or norm with an entry for every output; absent ones, too.

    The layer is linear, a convolution, norm, or layer scale; ``folds`` is of weight and bias, and
    ``layout`` the axes' ``repeats`` and ``inner``: see :class:`Axis`.
    """
    dim = 1 if _transposed(layer) else 0
    return [Axis(layer, 'weight', dim, folds, **layout), Axis(layer, 'bias', 0, folds, **layout),
            *(Axis(layer, name, **layout) for name in ('gamma', 'running_mean', 'running_var'))]


def along_inputs(layer: nn.Module, folds: bool = False, **layout: Any) -> Axis:
    """The axis of a layer's weight with its inputs; arguments as of :func:`along_outputs`."""
    return Axis(layer, 'weight', 0 if _transposed(layer) else 1, folds, **layout)


def _transposed(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd) and layer.transposed


def sync_sizes(module: nn.Module) -> None:
    """Set a layer's size attributes from the shape of its weight.

    It is a linear layer, convolution (dense or depthwise), BatchNorm, LayerNorm or GroupNorm
    (sliced by whole groups); any other module is left alone.
    """
    weight = getattr(module, 'weight', None)
    if hasattr(module, 'sync_size'):  # a layer of ours, whose weight does not show all its sizes
        module.sync_size()
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, _ConvNd) and not module.transposed:
        if module.groups > 1:  # depthwise: as many groups as channels
            module.groups = len(weight)
        module.out_channels, module.in_channels = len(weight), weight.shape[1] * module.groups
    elif isinstance(module, _ConvNd):
        module.in_channels, module.out_channels = weight.shape[:2]
    elif isinstance(module, nn.GroupNorm) and weight is not None:
        width = module.num_channels // module.num_groups  # channels per group, which stays
        module.num_channels, module.num_groups = len(weight), len(weight) // width
    elif isinstance(module, _BatchNorm):
        size = weight if weight is not None else module.running_mean
        module.num_features = len(size)
    elif isinstance(module, nn.LayerNorm) and weight is not None:
        module.normalized_shape = tuple(weight.shape)
