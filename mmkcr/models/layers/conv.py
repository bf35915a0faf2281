"""Convolutions of subnets."""

from typing import Optional, Tuple

import torch
from mmcv.cnn import ConvModule, Swish
from torch import Tensor, nn

from mmkcr.models.execution import eager_inference, onednn_infers
from .exchange import DerivedWeights, DerivesWeights, SharesParts

_OPERATORS = all(hasattr(torch.ops.mkldnn, name)
                 for name in ('_convolution_pointwise', '_reorder_convolution_weight'))
_ACTIVATIONS = {nn.Hardswish: 'hardswish', nn.SiLU: 'swish', Swish: 'swish', nn.ReLU: 'relu'}


def _fits(x: Tensor, conv: nn.Conv2d) -> bool:
    return bool(_OPERATORS and onednn_infers(x, conv.weight) and x.ndim == 4 and x.numel()
                and conv.padding_mode == 'zeros' and not isinstance(conv.padding, str))


def _pack(x: Tensor, conv: nn.Conv2d, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_convolution_weight(
        weight, conv.padding, conv.stride, conv.dilation, conv.groups, list(x.shape))


def _convolve(x: Tensor, conv: nn.Conv2d, packed: Tensor, bias: Optional[Tensor],
              activation: str, identity: Optional[Tensor] = None) -> Tensor:
    operator, form = torch.ops.mkldnn._convolution_pointwise, (
        packed, bias, conv.padding, conv.stride, conv.dilation, conv.groups)
    if identity is None:
        return operator(x, *form, activation, [], '')
    return operator(x, identity, *form, 'add', None, None, [], None)


class OnePassConv2d(SharesParts, DerivesWeights, nn.Conv2d):
    """A convolution from weights that are packed once, in eager fp32 inference on a CPU.

    There torch packs the weights at every call, and computes groups one by one.

    Args:
        conv (nn.Conv2d): Its parameters, hooks and attributes are shared.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__(conv)
        self._derived = DerivedWeights()

    def forward(self, x: Tensor) -> Tensor:
        """Of (B, C, H, W); gives channels last where it packs."""
        if not _fits(x, self):
            return super().forward(x)
        packed = self._derived.get((self.weight, ), lambda: _pack(x, self, self.weight.detach()))
        return _convolve(x, self, packed, self.bias, 'none')


class OnePassConvModule(SharesParts, DerivesWeights, ConvModule):
    """Convolution, batch norm and activation in one pass in eager fp32 inference on a CPU.

    There torch packs the weights at every call and normalises and activates in passes of their
    own. The operator of oneDNN that ``torch.compile`` uses does it all while it writes the output,
    from weights into which the norm is multiplied, packed at the first call and kept beside the
    parameters.

    Args:
        module (ConvModule): Its parts are shared, under their own keys.
    """

    def __init__(self, module: ConvModule) -> None:
        super().__init__(module)
        self._derived = DerivedWeights()

    def forward(self, x: Tensor, activate: bool = True, norm: bool = True,
                identity: Optional[Tensor] = None) -> Tensor:
        """Of (B, C, H, W), plus ``identity``; gives channels last where it is in one pass."""
        if not (activate and norm and self._fits_onednn(x)) or (
                identity is not None and (self.with_activation or identity.dtype != x.dtype)):
            out = super().forward(x, activate, norm)
            return out if identity is None else identity + out
        conv, parts = self.conv, [*self.conv.parameters()]
        if self.norm is not None:
            parts += [*self.norm.parameters(), *self.norm.buffers()]
        folded = self._derived.get(parts, dict)  # filled as the layouts of x need it
        if self._by_product(x):
            if 'product' not in folded:
                folded['product'] = self._product_weights()
            return self._multiply(x, *folded['product'], identity)
        if 'packed' not in folded:
            weight, bias = self._fold()
            folded['packed'] = _pack(x, conv, weight), bias
        packed, bias = folded['packed']
        kind = _ACTIVATIONS[type(self.activate)] if self.with_activation else 'none'
        return _convolve(x, conv, packed, bias, kind, identity)

    def _fits_onednn(self, x: Tensor) -> bool:
        conv, norm = self.conv, self.norm
        own = [conv, *([] if norm is None else [norm]),
               *([self.activate] if self.with_activation else [])]
        return (type(conv) is nn.Conv2d and _fits(x, conv) and not self.with_explicit_padding
                and self.order == ('conv', 'norm', 'act')
                and (norm is None or (type(norm) is nn.BatchNorm2d and not norm.training
                                      and norm.affine and norm.track_running_stats))
                and (not self.with_activation or type(self.activate) in _ACTIVATIONS)
                and not any(m._forward_hooks or m._forward_pre_hooks for m in own))

    def _by_product(self, x: Tensor) -> bool:
        """Whether it is a matrix product, which need not turn channels-first maps around."""
        conv = self.conv
        return (not self.with_activation and conv.kernel_size == conv.stride == (1, 1)
                and conv.padding == (0, 0) and conv.groups == 1 and x.is_contiguous()
                and not x.is_contiguous(memory_format=torch.channels_last))

    def _product_weights(self) -> Tuple[Tensor, Tensor]:
        weight, bias = self._fold()
        weight = weight.flatten(1).t().contiguous()
        return weight, weight.new_zeros(weight.shape[1]) if bias is None else bias

    @staticmethod
    def _multiply(x: Tensor, weight: Tensor, bias: Tensor, identity: Optional[Tensor]) -> Tensor:
        rows = torch.baddbmm(bias, x.flatten(2).transpose(1, 2), weight.expand(len(x), -1, -1))
        out = rows.transpose(1, 2).unflatten(2, x.shape[2:])  # channels last
        return out if identity is None else out.add_(identity)

    def _fold(self) -> Tuple[Tensor, Optional[Tensor]]:
        """Weight and bias of the convolution with the norm in it."""
        conv, norm = self.conv, self.norm
        weight, bias = conv.weight.detach(), None if conv.bias is None else conv.bias.detach()
        if norm is not None:
            scale = norm.weight.detach() / (norm.running_var + norm.eps).sqrt()
            shift = -norm.running_mean if bias is None else bias - norm.running_mean
            weight, bias = weight * scale[:, None, None, None], norm.bias.detach() + shift * scale
        return weight, bias


def plus(identity: Tensor, module: nn.Module, x: Tensor) -> Tensor:
    """``identity + module(x)``, in one pass where the module can.

    Args:
        identity (Tensor): Of the shape of what the module gives.
        module (nn.Module): Of a tensor.
        x (Tensor): Its input.
    """
    if (type(module) is OnePassConvModule and eager_inference(x)
            and not module._forward_hooks):  # a hook is to see what the module gives
        return module(x, identity=identity)
    return identity + module(x)


def use_one_pass_convs(root: nn.Module) -> None:
    """Exchange the convolutions below a module, with norm and activation in a ``ConvModule``.

    Args:
        root (nn.Module): Changed in place; keys stay.
    """
    for module in list(root.modules()):
        if isinstance(module, ConvModule):
            continue
        for name, child in module.named_children():
            if type(child) is ConvModule:
                setattr(module, name, OnePassConvModule(child))
            elif type(child) is nn.Conv2d:
                setattr(module, name, OnePassConv2d(child))
