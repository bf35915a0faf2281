"""The MLP with gated, or sliced, input and output channels (KCR, section 3.1)."""

import math
from typing import Optional, Sequence

import torch.nn.functional as F
from mmcv.cnn.bricks.transformer import FFN
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmkcr.core import SearchableLayer, slice_linear, slice_norm, slice_parameter
from mmkcr.core.sites import Count
from mmkcr.models.gates import BaseGate
from .selection import add, take


def _check_ffn(module: nn.Module) -> nn.Module:
    if not isinstance(module, (FFN, GatedFFN)) or not module.add_identity:
        raise TypeError('expected an mmcv `FFN` with identity to select channels of, found '
                        f'`{module.__class__.__name__}`')
    return module


class _FFNParts(BaseModule):
    """Holds the parts of a dense FFN under their own keys."""

    def __init__(self, ffn: nn.Module) -> None:
        super().__init__()
        _check_ffn(ffn)
        self.embed_dims = ffn.embed_dims
        self.feedforward_channels = ffn.feedforward_channels
        self.num_fcs = ffn.num_fcs
        self.add_identity = True
        self.layers = ffn.layers
        self.gamma2 = ffn.gamma2
        self.dropout_layer = ffn.dropout_layer
        self.training = ffn.training

    def linears(self) -> list:
        """The linear layers, first to last."""
        return [m for m in self.layers.modules() if isinstance(m, nn.Linear)]


class GatedFFN(_FFNParts, SearchableLayer):
    """Supernet MLP: ``identity + g * MLP(g * x)`` with one gate on both sides.

    Args:
        ffn (FFN): mmcv's FFN of D channels; its parameters keep their keys.
        gate (BaseGate): Gate of D units, under the key ``gate``.

    Raises:
        TypeError: ``ffn`` is no mmcv ``FFN`` with identity.
    """

    def __init__(self, ffn: nn.Module, gate: BaseGate) -> None:
        super().__init__(ffn)
        self.gate = gate

    def forward(self, x: Tensor, identity: Optional[Tensor] = None) -> Tensor:
        """Run the MLP on the normalised input ``x``; both of shape (..., D)."""
        mask = self.gate().to(x.dtype)
        out = mask * self.gamma2(self.layers(mask * x))
        return (x if identity is None else identity) + self.dropout_layer(out)

    def macs(self, size: Count, input_shape: Sequence[int]) -> Count:
        """Of all linear layers: ``positions * hidden * (2 size + (num_fcs - 2) hidden)``."""
        hidden = self.feedforward_channels
        return math.prod(input_shape[:-1]) * hidden * (2 * size + (self.num_fcs - 2) * hidden)

    def paper_cost(self, size: Count, input_shape: Sequence[int]) -> Count:
        """``l (2 size^2 + size)`` with l linear layers (KCR, section 3.3)."""
        return self.num_fcs * (2 * size * size + size)


class SlicedLayerNorm(nn.LayerNorm):
    """Layer norm with full-width statistics that outputs only the kept channels.

    Args:
        norm (nn.LayerNorm): Over D channels.
        kept (Tensor): Kept channels, int64, ascending, shape (D~,).

    Raises:
        TypeError: ``norm`` is no ``LayerNorm``.
    """

    def __init__(self, norm: nn.LayerNorm, kept: Tensor) -> None:
        if not isinstance(norm, nn.LayerNorm):
            raise TypeError(f'expected a `LayerNorm` to slice, found `{norm.__class__.__name__}`')
        super().__init__(norm.normalized_shape, norm.eps, norm.elementwise_affine)
        self.total = norm.normalized_shape[0]
        self.weight, self.bias = norm.weight, norm.bias
        slice_norm(self, kept)
        self.register_buffer('kept', kept.clone(), persistent=False)  # the FFN's is saved

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., D) and return the kept channels (..., D~)."""
        x = take(F.layer_norm(x, (self.total, ), eps=self.eps), self.kept)
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias


class SlicedFFN(_FFNParts):
    """Subnet MLP on the kept channels: ``identity[..., kept] += MLP'(x)``.

    Args:
        ffn (FFN | GatedFFN): Of D channels.
        kept (Tensor): Kept channels, int64, ascending, shape (D~,).

    Raises:
        TypeError: ``ffn`` is no mmcv ``FFN`` with identity.
    """

    def __init__(self, ffn: nn.Module, kept: Tensor) -> None:
        super().__init__(ffn)
        slice_linear(self.linears()[0], in_index=kept)
        slice_linear(self.linears()[-1], out_index=kept)
        slice_parameter(self.gamma2, 'weight', {0: kept})
        self.register_buffer('kept', kept.clone())

    def forward(self, x: Tensor, identity: Tensor) -> Tensor:
        """Add the MLP of ``x`` (..., D~) to the kept channels of ``identity`` (..., D)."""
        return add(identity, self.kept, self.dropout_layer(self.gamma2(self.layers(x))))
