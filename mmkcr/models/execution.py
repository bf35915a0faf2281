"""Where a model runs: kernels and layouts that fit there are chosen by it."""

import torch
from torch import Tensor


def exporting() -> bool:
    """Whether the model is being traced for a file: scatters have no good form there."""
    return torch.onnx.is_in_onnx_export() or torch.compiler.is_exporting()


def eager_on_cpu(x: Tensor) -> bool:
    """Whether ``x`` is computed by eager CPU kernels."""
    return (x.device.type == 'cpu' and not torch.compiler.is_compiling() and not exporting()
            and not torch.jit.is_tracing())


def eager_inference(x: Tensor) -> bool:
    """Whether ``x`` is computed by eager CPU kernels and no gradient needs what is on the way."""
    return eager_on_cpu(x) and not torch.is_grad_enabled()


def onednn_infers(x: Tensor, weight: Tensor) -> bool:
    """Whether fp32 operators of oneDNN can take both: in eager inference on a CPU."""
    return (eager_inference(x) and type(x) is Tensor
            and x.dtype == weight.dtype == torch.float32 and not torch.is_autocast_enabled('cpu')
            and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled)
