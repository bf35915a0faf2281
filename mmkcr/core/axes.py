"""The parameters that a site's units lie along: sliced together, scaled together.

A backbone lists the :class:`Member` of each of its sites, and nothing else is
needed to slice a site (weights and optimizer moments), to fold a mask into the
weights, or to build a subnet.
"""

from typing import Iterable, NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from .slicing import slice_parameter

# State of torch's optimizers that is linear, or quadratic, in the gradient.
_LINEAR = ('exp_avg', 'momentum_buffer')
_QUADRATIC = ('exp_avg_sq', 'max_exp_avg_sq', 'sum', 'square_avg')


class Member(NamedTuple):
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
    """

    module: nn.Module
    name: str
    dim: int = 0
    folds: bool = False
    repeats: int = 1
    inner: int = 1
    per: int = 1

    @property
    def value(self) -> Optional[Tensor]:
        """The parameter or buffer, if there is one."""
        return getattr(self.module, self.name, None)

    def entries(self, units: Tensor) -> Tensor:
        """Positions on the axis of some of the units present, in the units' order."""
        if self.per > 1:
            return torch.unique(units // self.per)
        block = self.value.shape[self.dim] // self.repeats
        offsets = torch.arange(self.repeats, device=units.device) * block
        inner = torch.arange(self.inner, device=units.device)
        return (offsets[:, None, None] + units[None, :, None] * self.inner + inner).flatten()


def slice_members(members: Iterable[Member], units: Tensor,
                  optimizer: Optional[Optimizer] = None) -> None:
    """Keep some of the units present of a site in all its parameters.

    Args:
        members (Iterable[Member]): The site's.
        units (Tensor): Positions among the units present, int64, ascending.
        optimizer (Optimizer, optional): Whose moments are sliced alike, see
            :func:`~mmkcr.core.slice_parameter`.
    """
    for member in members:
        if member.value is not None:
            index = member.entries(units.to(member.value.device))
            slice_parameter(member.module, member.name, {member.dim: index}, optimizer)
            sync_sizes(member.module)


def scale_members(members: Iterable[Member], scale: Tensor,
                  optimizer: Optional[Optimizer] = None) -> None:
    """Multiply a scale of the units into the parameters that take it.

    The gradient of a parameter that holds the product is the old one over the
    scale, and so are, by their power of the gradient, the optimizer's moments.

    Args:
        members (Iterable[Member]): The site's; those that do not fold are left alone.
        scale (Tensor): Of the units present, none 0, shape (units,).
        optimizer (Optimizer, optional): Whose moments follow.
    """
    for member in members:
        value = member.value
        if value is None or not member.folds:
            continue
        shape = [1] * value.ndim
        shape[member.dim] = -1
        factor = scale.detach().to(value).repeat_interleave(member.inner).repeat(member.repeats)
        factor = factor.view(shape)
        value.data.mul_(factor)
        if value.grad is not None:
            value.grad.div_(factor)
        state = optimizer.state.get(value, {}) if optimizer is not None else {}
        for power, names in ((1, _LINEAR), (2, _QUADRATIC)):
            for name in names:
                if torch.is_tensor(state.get(name)) and state[name].shape == value.shape:
                    state[name].div_(factor**power)


def sync_sizes(module: nn.Module) -> None:
    """Set a layer's own record of its sizes from its weight.

    Args:
        module (nn.Module): A linear layer, convolution (dense or depthwise),
            BatchNorm or LayerNorm; any other is left alone.
    """
    weight = getattr(module, 'weight', None)
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = weight.shape
    elif isinstance(module, _ConvNd) and not module.transposed:
        if module.groups > 1:
            module.groups = len(weight)
        module.out_channels, module.in_channels = len(weight), weight.shape[1] * module.groups
    elif isinstance(module, _BatchNorm):
        size = weight if weight is not None else module.running_mean
        module.num_features = len(size)
    elif isinstance(module, nn.LayerNorm) and weight is not None:
        module.normalized_shape = tuple(weight.shape)
