"""Lightweight multi-scale linear attention of EfficientViT.

Shapes: B batch, C channels, H heads, d head width (C = H d), S = 2 scales (the first is the
identity), N positions.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from torch import Tensor, nn

from .selection import exporting


class LiteMLA(BaseModule):
    r"""``x + Proj(concat_s ReLU(Q_s) (ReLU(K_s)^T V_s))`` (Cai et al. 2023, section 3.1).

    Queries, keys and values of the second scale come from the first scale by a depthwise
    convolution of size 5 and then a grouped convolution. The products run in fp32 (or fp64), also
    under autocast.

    A mask selects channels of the queries and keys of every scale, before the ReLU (DCS, appendix
    A). After it the values would be the same, but not the straight-through gradient: that of a
    query whose channels are all closed would be 1 / eps times too large.

    Args:
        channels, head_dim (int): C, a multiple of d, and d.
        eps (float): Added to the normaliser: 1e-5 in timm, 1e-15 in the official code.
        quadratic (bool): Form the N x N attention map if N <= d, as the official code does and
            timm does not. The results are equal up to ``eps``.
        norm_cfg (dict): Norm of the projection.
    """

    def __init__(self, channels: int, head_dim: int, eps: float, quadratic: bool,
                 norm_cfg: Mapping) -> None:
        super().__init__()
        if channels % head_dim:
            raise ValueError(f'expected the channels of a `LiteMLA` to be a multiple of '
                             f'`head_dim` {head_dim}, found {channels}')
        self.channels, self.head_dim = channels, head_dim
        self.eps, self.quadratic = eps, quadratic
        # the grouped convolution has one group for each of q, k and v of each head
        wide, groups = 3 * channels, 3 * channels // head_dim
        self.qkv = nn.Conv2d(channels, wide, 1, bias=False)
        self.aggreg = nn.ModuleList([nn.Sequential(
            nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False),
            nn.Conv2d(wide, wide, 1, groups=groups, bias=False))])
        self.features = 2 * channels  # of both scales, before any selection
        self.proj = ConvModule(self.features, channels, 1, norm_cfg=norm_cfg, act_cfg=None)
        self.select = nn.Identity()  # in a subnet: takes the channels that the projection reads
        self.mask: nn.Module | None = None  # of queries and keys, over the C channels of a scale

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        qkv = self.qkv(x)
        scales = torch.cat([qkv, self.aggreg[0](qkv)], 1).flatten(2)  # a head's 3 d side by side
        # (B, S H, 2, d, N) and (B, S H, 1, d, N)
        qk, v = scales.unflatten(1, (-1, 3, self.head_dim)).split([2, 1], 2)
        if self.mask is not None:
            theta = self.mask(x).flatten(3)  # (B, R, C, N)
            theta = theta.unflatten(2, (-1, self.head_dim)).transpose(1, 2)
            # (B, S, H, 2, d, N) times (B, 1, H, R, d, N): all scales share the mask
            qk = qk.unflatten(1, (2, -1)) * self.mask.binarize(theta[:, None])
            qk = qk.flatten(1, 2)
        q, k = F.relu(qk).unbind(2)
        out = self.attend(q, k, v.squeeze(2)).reshape(x.shape[0], self.features, *x.shape[2:])
        return x + self.proj(self.select(out))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Normalised linear attention of queries ``q``, keys ``k`` and values ``v``, (B, S H, d, N)
        each, to the shape of the values.
        """
        dtype, precise = v.dtype, torch.promote_types(v.dtype, torch.float32)
        with torch.autocast(v.device.type, enabled=False):
            q, k, v = q.to(precise), k.to(precise), v.to(precise)
            if self.quadratic and v.shape[-1] <= self.head_dim:
                weights = k.transpose(-1, -2) @ q  # (keys, queries): normalised over the keys
                out = v @ (weights / (weights.sum(-2, keepdim=True) + self.eps))
            else:
                keys = k.transpose(-1, -2)
                # sums of the keys, (B, S H, 1, d): a product with ones, whose MACs published counts
                # include; in an export a plain sum, because ONNX Runtime fuses the product wrongly
                sums = k.sum(-1).unsqueeze(-2) if exporting() else \
                    torch.ones_like(k[:, :, :1]) @ keys
                # (v k^T) first, (d, d): linear in N
                out = v @ keys @ q / (sums @ q + self.eps)
        return out.to(dtype)
