"""The tensor axes that a site's units lie along: sliced together, scaled together.

A site lists its axes, and nothing else is needed to slice it (weights and
optimizer moments), to fold a mask into the weights, to count its MACs or to
build a subnet.
"""

from typing import Iterable, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from .slicing import slice_parameter

# State of torch's optimizers that is linear, or quadratic, in the gradient.
_LINEAR = ('exp_avg', 'momentum_buffer')
_QUADRATIC = ('exp_avg_sq', 'max_exp_avg_sq', 'sum', 'square_avg')


class Axis(NamedTuple):
    """One axis of one parameter or buffer along which a site's units lie.

    With ``repeats`` r and ``inner`` k the axis is r blocks (queries, keys and
    values: 3), each of all units, each unit of k consecutive entries (unfolded
    2 x 2 neighbours: 4).

    Args:
        module (nn.Module): Owner of the parameter.
        name (str): Attribute name; an absent or ``None`` one is left alone.
        dim (int): The axis. Defaults to 0.
        folds (bool): Whether a scale of the units can be multiplied into this
            parameter, so that the unit's value is scaled. Defaults to False.
        repeats (int): r. Defaults to 1.
        inner (int): k. Defaults to 1.
        per (int): Units that share an entry (a head's channels one position
            bias): then unit u lies at entry u // per. Defaults to 1.
        before (tuple[int | nn.Module, ...], optional): The axis reads several
            layers one after the other: entries, or layers whose outputs these
            are, in front of the units'. Such an axis is listed before those of
            its own writers. Defaults to None: all of the axis is the units'.
        writer (nn.Module, optional): Then the layer that writes the units.
    """

    module: nn.Module
    name: str
    dim: int = 0
    folds: bool = False
    repeats: int = 1
    inner: int = 1
    per: int = 1
    before: Optional[Tuple[Union[int, nn.Module], ...]] = None
    writer: Optional[nn.Module] = None

    @property
    def value(self) -> Optional[Tensor]:
        """The parameter or buffer, if there is one."""
        return getattr(self.module, self.name, None)

    @property
    def span(self) -> Tuple[int, int]:
        """Where on the axis the units present begin and end."""
        if self.before is None:
            return 0, self.value.shape[self.dim]
        start = sum(layer if isinstance(layer, int) else _outputs(layer) for layer in self.before)
        return start, start + _outputs(self.writer)

    def entries(self, units: Tensor) -> Tensor:
        """Positions on the axis of some of the units present, in the units' order."""
        if self.per > 1:
            return torch.unique(units // self.per)
        start, end = self.span
        block = (end - start) // self.repeats
        offsets = torch.arange(self.repeats, device=units.device) * block + start
        inner = torch.arange(self.inner, device=units.device)
        return (offsets[:, None, None] + units[None, :, None] * self.inner + inner).flatten()

    def kept_entries(self, units: Tensor) -> Tensor:
        """All positions that are left where some of the units present are kept, ascending parts."""
        (start, end), length = self.span, self.value.shape[self.dim]
        sides = [torch.arange(*side, device=units.device) for side in ((0, start), (end, length))]
        return torch.cat([sides[0], self.entries(units), sides[1]])


def slice_axes(axes: Iterable[Axis], units: Tensor,
                  optimizer: Optional[Optimizer] = None) -> None:
    """Keep some of the units present of a site in all its parameters.

    Args:
        axes (Iterable[Axis]): The site's.
        units (Tensor): Positions among the units present, int64, ascending.
        optimizer (Optimizer, optional): Whose moments are sliced alike, see
            :func:`~mmkcr.core.slice_parameter`.
    """
    for axis in axes:
        if axis.value is not None:
            index = axis.kept_entries(units.to(axis.value.device))
            slice_parameter(axis.module, axis.name, {axis.dim: index}, optimizer)
            sync_sizes(axis.module)


def scale_axes(axes: Iterable[Axis], scale: Tensor,
                  optimizer: Optional[Optimizer] = None) -> None:
    """Multiply a scale of the units into the parameters that take it.

    The gradient of a parameter that holds the product is the old one over the
    scale, and so are, by their power of the gradient, the optimizer's moments.

    Args:
        axes (Iterable[Axis]): The site's; those that do not fold are left alone.
        scale (Tensor): Of the units present, none 0, shape (units,).
        optimizer (Optimizer, optional): Whose moments follow.
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


def _outputs(layer: nn.Module) -> int:
    """Output channels of a linear layer or convolution."""
    transposed = isinstance(layer, _ConvNd) and layer.transposed
    return layer.weight.shape[1 if transposed else 0]


def sync_sizes(module: nn.Module) -> None:
    """Set a layer's own record of its sizes from its weight.

    Args:
        module (nn.Module): A linear layer, convolution (dense or depthwise),
            BatchNorm, LayerNorm or GroupNorm (whole groups of channels); any other is left
            alone.
    """
    weight = getattr(module, 'weight', None)
    if hasattr(module, 'sync_size'):  # it knows better
        module.sync_size()
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, _ConvNd) and not module.transposed:
        if module.groups > 1:
            module.groups = len(weight)
        module.out_channels, module.in_channels = len(weight), weight.shape[1] * module.groups
    elif isinstance(module, _ConvNd):
        module.in_channels, module.out_channels = weight.shape[:2]
    elif isinstance(module, nn.GroupNorm) and weight is not None:
        width = module.num_channels // module.num_groups
        module.num_channels, module.num_groups = len(weight), len(weight) // width
    elif isinstance(module, _BatchNorm):
        size = weight if weight is not None else module.running_mean
        module.num_features = len(size)
    elif isinstance(module, nn.LayerNorm) and weight is not None:
        module.normalized_shape = tuple(weight.shape)
