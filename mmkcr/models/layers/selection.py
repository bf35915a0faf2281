"""Where a model runs, and selected channels put back in the form that fits there."""

import torch
import torch.nn.functional as F
from torch import Tensor


def exporting() -> bool:
    """Whether the model is being traced for a file: scatters have no good form there."""
    return torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()


def eager_on_cpu(x: Tensor) -> bool:
    """Whether ``x`` is computed by eager CPU kernels."""
    return (x.device.type == 'cpu' and not torch.compiler.is_compiling() and not exporting()
            and not torch.jit.is_tracing())


def onednn_infers(x: Tensor, weight: Tensor) -> bool:
    """Whether fp32 operators of oneDNN can take both: in eager inference on a CPU."""
    return (eager_on_cpu(x) and not torch.is_grad_enabled() and type(x) is Tensor
            and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled('cpu')
            and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)


def spread(out: Tensor, kept: Tensor, total: int, dim: int = -1) -> Tensor:
    """Kept channels to all channels, zero where not kept, in ordinary operators.

    Args:
        out (Tensor): With ``len(kept)`` channels along ``dim``.
        kept (Tensor): Their places, int64, ascending.
        total (int): All channels.
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: With ``total`` channels along ``dim``.
    """
    dim = dim % out.ndim
    inverse = torch.full((total, ), len(kept))
    inverse[kept] = torch.arange(len(kept))
    padding = (0, 0) * (out.ndim - 1 - dim) + (0, 1)
    return F.pad(out, padding).index_select(dim, inverse)


def widen(x: Tensor, kept: Tensor, total: int, dim: int = -1) -> Tensor:
    """As :func:`spread`, by a scatter where that has a good form.

    Args:
        x (Tensor): With ``len(kept)`` channels along ``dim``.
        kept (Tensor): Their places, int64, ascending.
        total (int): All channels.
        dim (int): Of the channels. Defaults to -1.

    Returns:
        Tensor: With ``total`` channels along ``dim``.
    """
    if exporting():
        return spread(x, kept, total, dim)
    shape = list(x.shape)
    shape[dim] = total
    return x.new_zeros(shape).index_copy(dim % x.ndim, kept, x)
