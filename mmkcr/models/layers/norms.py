"""Layer norms whose output, or whose statistics, cover only some of the channels."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core import BaseGate
from .take_over import take_over


class SlicedLayerNorm(nn.LayerNorm):
    """Layer norm with the statistics of all D channels that returns only the kept ones."""

    total: int

    @classmethod
    def convert_from(cls, norm: nn.LayerNorm, kept: Tensor) -> 'SlicedLayerNorm':
        """Take over a norm over D channels that keeps some, int64, ascending, shape (K,).

        Its affine parameters are sliced, or will be.
        """
        new = take_over(cls, norm, total=norm.normalized_shape[0])
        # not in the state_dict: the structure has the kept units
        new.register_buffer('kept', kept.clone(), persistent=False)
        return new

    def sync_size(self) -> None:
        """Do nothing: the statistics are over all channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., D) and return the kept channels (..., K)."""
        x = F.layer_norm(x, (self.total, ), eps=self.eps).index_select(-1, self.kept)
        if self.weight is not None:
            x = x * self.weight
        return x if self.bias is None else x + self.bias


class MaskedLayerNorm(nn.LayerNorm):
    """Layer norm of a supernet, over the channels that a gate supports.

    The statistics are weighted by the gate's support, and unsupported channels give 0. So slicing
    them away changes nothing.
    """

    #: The gate, in a tuple so that it is not a sub-module: it belongs to a site.
    shared: tuple[BaseGate]
    #: Consecutive channels per unit (4 where 2 x 2 neighbours were unfolded).
    inner: int = 1

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., units * inner)."""
        support = self.shared[0].support()
        if support is None:
            return super().forward(x)
        # as torch's layer norm: computed in fp32, and only under autocast also returned in fp32
        precise = torch.promote_types(x.dtype, torch.float32)
        dtype = precise if torch.is_autocast_enabled(x.device.type) else x.dtype
        x = x.to(precise)
        support = support.to(x.dtype).repeat_interleave(self.inner)
        count = support.sum()
        centred = x - (x * support).sum(-1, keepdim=True) / count
        variance = (centred.square() * support).sum(-1, keepdim=True) / count
        out = centred * torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            out = out * self.weight
        return ((out if self.bias is None else out + self.bias) * (support > 0)).to(dtype)
