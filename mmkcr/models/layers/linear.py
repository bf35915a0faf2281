"""Linear layers of subnets."""

from typing import Optional

import torch
import torch.nn.functional as F
from mmcv.cnn import Linear, Swish
from torch import Tensor, nn

from mmkcr.models.execution import eager_inference, onednn_infers
from .exchange import DerivedWeights, DerivesWeights, SharesParts

_OPERATORS = all(hasattr(torch.ops.mkldnn, name)
                 for name in ('_linear_pointwise', '_reorder_linear_weight'))
_MKL_OPERATORS = all(hasattr(torch.ops.mkl, name)
                     for name in ('_mkl_linear', '_mkl_reorder_linear_weight'))
_ACTIVATIONS = {nn.GELU: 'gelu', nn.SiLU: 'swish', Swish: 'swish', nn.ReLU: 'relu'}
_MKL_CHANNELS = 512  # in and out; where MKL's product, which torch calls, is faster than oneDNN's


class OnePassLinear(SharesParts, DerivesWeights, nn.Linear):
    """A linear layer, and the activation behind it, in one pass in eager fp32 inference on a CPU.

    There torch writes the bias, adds the product to it and activates in a pass of its own. The
    operator of oneDNN that ``torch.compile`` uses does it all while it writes the product, from
    weights that are packed at the first call and kept beside the parameters. Of a large product
    without activation the bias is a small part, and MKL's packed one is faster; it fits one number
    of tokens, and weights are packed for it when it comes a second time in a row.

    Args:
        linear (nn.Linear): Its parameters, hooks and attributes are shared.
        activation (nn.Module | None): GELU, SiLU, mmcv's Swish or ReLU of the output.
    """

    def __init__(self, linear: nn.Linear, activation: Optional[nn.Module] = None) -> None:
        super().__init__(linear)
        self.activation = 'none' if activation is None else _ACTIVATIONS[type(activation)]
        self.approximate = getattr(activation, 'approximate', None)  # of a GELU
        self._derived, self._tokens = DerivedWeights(), -1

    def forward(self, x: Tensor) -> Tensor:
        """Of (..., in_features)."""
        if _OPERATORS and onednn_infers(x, self.weight):
            if (self.activation == 'none' and _MKL_OPERATORS
                    and min(self.weight.shape) >= _MKL_CHANNELS):
                return self._by_mkl(x)
            packed = self._derived.get((self.weight, ), lambda: torch.ops.mkldnn.
                                       _reorder_linear_weight(self.weight.detach(), None))
            return torch.ops.mkldnn._linear_pointwise(x, packed, self.bias, self.activation, [],
                                                      self.approximate)
        return self._activate(super().forward(x))

    def _activate(self, x: Tensor) -> Tensor:
        in_place = eager_inference(x)  # a new hidden layer costs time
        if self.activation == 'gelu' and in_place:
            return torch.ops.aten.gelu_(x, approximate=self.approximate)
        if self.activation == 'gelu':
            return F.gelu(x, approximate=self.approximate)
        if self.activation == 'none':
            return x
        return (F.silu if self.activation == 'swish' else F.relu)(x, inplace=in_place)

    def _by_mkl(self, x: Tensor) -> Tensor:
        tokens = x.shape[:-1].numel()
        if not tokens or tokens != self._tokens:
            self._tokens = tokens
            self._derived.forget()
            return super().forward(x)
        packed = self._derived.get((self.weight, ), lambda: torch.ops.mkl.
                                   _mkl_reorder_linear_weight(self.weight.detach(), tokens))
        return torch.ops.mkl._mkl_linear(x, packed, self.weight, self.bias, tokens)

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        shown = '' if self.activation == 'none' else f', activation={self.activation!r}'
        return super().extra_repr() + shown


def use_one_pass(root: nn.Module) -> None:
    """Exchange the linear layers below a module, with the activation behind, for one-pass ones.

    Args:
        root (nn.Module): Changed in place; keys stay.
    """
    for module in list(root.modules()):
        children = list(module.named_children())
        for (name, child), (after, follower) in zip(children, children[1:] + [('', None)]):
            if type(child) in (nn.Linear, Linear):
                ordered = isinstance(module, nn.Sequential) and type(follower) in _ACTIVATIONS
                setattr(module, name, OnePassLinear(child, follower if ordered else None))
                if ordered:
                    setattr(module, after, nn.Identity())
