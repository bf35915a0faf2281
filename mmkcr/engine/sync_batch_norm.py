"""Batch norms with statistics over the batches of all processes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mmengine.dist import get_world_size
from mmengine.hooks import Hook
from mmengine.model import revert_sync_batchnorm
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from mmkcr.models.tasks import unwrap
from mmkcr.registry import HOOKS


@HOOKS.register_module()
class SyncBatchNormHook(Hook):
    """Makes batch norms of several processes equal to one process with the whole batch.

    Without it a checkpoint holds the running statistics of the first process alone: two processes
    do not equal one, nor is a run resumed exactly.

    PyTorch's ``SyncBatchNorm`` refuses the CPU, and converting a model to it replaces a subclass
    with its own forward by a plain layer. Here the layers stay, and the function that they call is
    replaced during training, also in supernets and in layers that are sliced. Layers that already
    are ``SyncBatchNorm`` are left alone on GPUs and become plain ones on the CPU.

    Layers in eval mode (``norm_eval``) take no part. Every process has to run the same layers in
    the same order. :class:`ExactResumeHook` registers this hook.
    """

    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self._handles: list[Any] = []

    def before_train(self, runner: Runner) -> None:
        """Synchronise the model's batch norms."""
        if get_world_size() == 1:
            return
        model = unwrap(runner.model)
        if next(model.parameters()).device.type == 'cpu':
            revert_sync_batchnorm(model)
        for module in model.modules():
            if isinstance(module, _BatchNorm) and not isinstance(module, nn.SyncBatchNorm):
                self._handles += synchronize(module)

    def after_train(self, runner: Runner) -> None:
        """End the synchronisation."""
        while self._handles:
            self._handles.pop().remove()


def synchronize(module: nn.Module) -> list[Any]:
    """Make a layer's batch norm see all processes' batches; removing the handles undoes it."""
    mode = _AcrossProcesses()

    def enter(*_: Any) -> None:
        mode.__enter__()

    def leave(*_: Any) -> None:
        mode.__exit__(None, None, None)

    return [module.register_forward_pre_hook(enter),
            # also when the forward raises: a mode left behind would stay active
            module.register_forward_hook(leave, always_call=True)]


class _AcrossProcesses(TorchFunctionMode):
    """Replaces ``torch.nn.functional.batch_norm`` in training within the ``with`` block."""

    def __torch_function__(self, function: Callable, types: Sequence[type],
                           args: tuple = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if function is F.batch_norm and (kwargs or {}).get('training'):
            return batch_norm_across_processes(*args, **kwargs)
        return function(*args, **(kwargs or {}))


def batch_norm_across_processes(x: Tensor, running_mean: Tensor | None,
                                running_var: Tensor | None, weight: Tensor | None = None,
                                bias: Tensor | None = None, training: bool = True,
                                momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """``torch.nn.functional.batch_norm`` in training, over the batches of all processes.

    The gradient is the gradient of the sum of all processes' losses;
    ``DistributedDataParallel`` turns it into their mean.

    Args:
        x (Tensor): (B, C, ...); B may differ between processes.
        running_mean, running_var (Tensor, optional): Statistics (C,), changed in place.
        weight, bias (Tensor, optional): Affine parameters, (C,). Default to None.
        training (bool): Not used. Defaults to True.
        momentum (float): Share of the new statistics. Defaults to 0.1.
        eps (float): Added to the variance. Defaults to 1e-5.
    """
    # statistics in fp32, as the fused kernels have it
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    dims, shape = [0, *range(2, x.ndim)], (1, -1, *(1 for _ in x.shape[2:]))
    local = torch.cat([wide.sum(dims), wide.new_tensor([x.numel() / x.shape[1]])])  # (C + 1,)
    sums, count = _Sum.apply(local).split([x.shape[1], 1])
    # a process may have nothing, such as no regions of interest, and all of them too
    several = count.clamp(min=1)
    mean = sums / several
    centred = wide - mean.view(shape)
    var = _Sum.apply(centred.square().sum(dims)) / several
    out = centred * (var + eps).rsqrt().view(shape)
    with torch.no_grad():
        share = momentum * (count > 0).to(count)
        unbiased = var * count / (count - 1).clamp(min=1)  # as PyTorch's running variance
        for running, value in ((running_mean, mean), (running_var, unbiased)):
            if running is not None:
                running.lerp_(value.to(running), share.to(running))
    if weight is not None:
        out = out * weight.to(out).view(shape)
    if bias is not None:
        out = out + bias.to(out).view(shape)
    return out.to(x.dtype)


class _Sum(torch.autograd.Function):
    """The sum over processes; ``torch.distributed.nn.functional`` has a deprecated one."""

    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        total = part.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Sum.forward(ctx, grad)
