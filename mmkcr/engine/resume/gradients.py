"""Gradients of several processes."""

from collections.abc import Sequence

import torch
from mmengine.dist import all_gather, all_reduce
from torch import Tensor, nn


def gather_gradients(model: nn.Module) -> dict[str, list[Tensor]]:
    """Collect the gradients of every process, where any process has some.

    Args:
        model (nn.Module): The same on every process.

    Returns:
        dict[str, list[Tensor]]: On the CPU, by parameter, one gradient per process; zeros where a
        process has none.
    """
    named = {name: param for name, param in model.named_parameters() if param.requires_grad}
    present = torch.tensor([param.grad is not None for param in named.values()], dtype=torch.int)
    # all ranks must agree on the parameters that are gathered, or the collectives would not match
    all_reduce(present, 'max')
    return {name: [grad.cpu() for grad in all_gather(
                torch.zeros_like(param) if param.grad is None else param.grad)]
            for (name, param), there in zip(named.items(), present.tolist()) if there}


def average_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Replace gradients by their mean over ranks, in one message.

    Args:
        parameters (Sequence[nn.Parameter]): The same on every rank.
    """
    grads = [param.grad for param in parameters if param.grad is not None]
    if not grads:
        return
    flat = torch.cat([grad.flatten() for grad in grads])
    all_reduce(flat, op='mean')
    for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads])):
        grad.copy_(mean.view_as(grad))
