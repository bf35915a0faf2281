"""Physical slicing of parameters, layers and optimizer state.

One rule is behind everything here: keep ``index[d]`` along dimension ``d`` of a
parameter, and the same entries of every optimizer moment of the same shape.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Index = Tensor | None


def take_entries(tensor: Tensor, index: Mapping[int, Index]) -> Tensor:
    """Keep the given entries of a tensor along some of its dimensions, in new memory.

    Args:
        tensor (Tensor): Any tensor.
        index (Mapping[int, Tensor | None]): Kept positions (int64) by dimension; ``None`` keeps a
            dimension whole.
    """
    out = tensor.detach()
    for dim, keep in index.items():
        if keep is not None:
            out = out.index_select(dim, keep.to(out.device))
    # with nothing to select, `out` is still a view of the input
    return out.clone() if out.data_ptr() == tensor.data_ptr() else out


def slice_parameter(module: nn.Module,
                    name: str,
                    index: Mapping[int, Index],
                    optimizer: Optimizer | None = None) -> None:
    """Replace ``module.<name>`` (a parameter or buffer) by its kept entries.

    Args:
        module (nn.Module): Owner of the parameter.
        name (str): Attribute name. An absent or ``None`` attribute is left alone.
        index (Mapping[int, Tensor | None]): As in :func:`take_entries`.
        optimizer (Optimizer, optional): Its parameter groups then hold the new parameter, and every
            state tensor of the old one's shape (moments, momentum buffers) is sliced likewise.
    """
    old = getattr(module, name, None)
    if old is None:
        return
    if not isinstance(old, nn.Parameter):
        setattr(module, name, take_entries(old, index))
        return
    new = nn.Parameter(take_entries(old, index), requires_grad=old.requires_grad)
    if old.grad is not None:
        new.grad = take_entries(old.grad, index)
    setattr(module, name, new)
    if optimizer is not None:
        _swap_in_optimizer(optimizer, old, new, index)


def _swap_in_optimizer(optimizer: Optimizer, old: nn.Parameter, new: nn.Parameter,
                       index: Mapping[int, Index]) -> None:
    for group in optimizer.param_groups:
        group['params'] = [new if p is old else p for p in group['params']]
    if old in optimizer.state:  # state of another shape, such as the step count, stays
        state: dict = optimizer.state.pop(old)
        optimizer.state[new] = {
            key: take_entries(value, index)
            if torch.is_tensor(value) and value.shape == old.shape else value
            for key, value in state.items()
        }
