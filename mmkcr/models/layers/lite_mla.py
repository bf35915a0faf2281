"""Lightweight multi-scale linear attention of EfficientViT.

B batch, C channels, H heads, d head width (C = H d), S scales with the identity, N positions.
"""

from typing import Mapping, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmkcr.models.gates import QKMask
from .selection import exporting


class LiteMLA(BaseModule):
    r"""``x + Proj(concat_s ReLU(Q_s) (ReLU(K_s)^T V_s))`` (Cai et al. 2023, section 3.1).

    Queries, keys and values of scale s are a depthwise and a group-wise convolution of those of
    the first scale. The products run in fp32 (or fp64) whatever the autocast.

    A mask selects channels of the queries and keys of every scale, before the ReLU (DCS, appendix
    A). After it the numbers would be the same, but not the straight-through gradient: of a query
    whose channels are all closed it is that of a quotient of zeros, 1 / eps times too large, and
    the digits are not learnt. Before it, the ReLU gives closed channels no gradient.

    Args:
        channels (int): Channels C, a multiple of ``head_dim``.
        head_dim (int): Head width d. Defaults to 16.
        scales (Sequence[int]): Kernel sizes of the further scales. Defaults to (5, ).
        eps (float): Added to the normaliser: timm's 1e-5, or 1e-15 of the official code.
            Defaults to 1e-5.
        quadratic (bool): Form the N x N attention map where N <= d, as the official code does.
            Equal up to ``eps``. Defaults to False, timm's.
        norm_cfg (dict): Of the projection. Defaults to batch norm.

    Raises:
        ValueError: ``channels`` is no multiple of ``head_dim``.
    """

    def __init__(self,
                 channels: int,
                 head_dim: int = 16,
                 scales: Sequence[int] = (5, ),
                 eps: float = 1e-5,
                 quadratic: bool = False,
                 norm_cfg: Optional[Mapping] = dict(type='BN')) -> None:
        super().__init__()
        if channels % head_dim:
            raise ValueError(f'expected the channels of a `LiteMLA` to be a multiple of '
                             f'`head_dim` {head_dim}, found {channels}')
        self.channels, self.head_dim = channels, head_dim
        self.eps, self.quadratic = eps, quadratic
        wide, groups = 3 * channels, 3 * channels // head_dim
        self.qkv = nn.Conv2d(channels, wide, 1, bias=False)
        self.aggreg = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(wide, wide, scale, padding=scale // 2, groups=wide, bias=False),
                nn.Conv2d(wide, wide, 1, groups=groups, bias=False)) for scale in scales)
        self.proj = ConvModule((1 + len(scales)) * channels, channels, 1, norm_cfg=norm_cfg,
                               act_cfg=None)
        self.select = nn.Identity()  # a subnet takes the channels here that its projection reads
        self.mask: Optional[QKMask] = None  # for maps of C channels

    @property
    def features(self) -> int:
        """Channels of the concatenated scales, S C, before any selection."""
        return (1 + len(self.aggreg)) * self.channels

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same shape."""
        theta = None if self.mask is None else self.mask(x)
        out = self.attend(*self.queries_keys_values(self.qkv(x), theta))
        out = out.reshape(x.shape[0], self.features, *x.shape[2:])
        return x + self.proj(self.select(out))

    def queries_keys_values(self, qkv: Tensor,
                            theta: Optional[Tensor]) -> Tuple[Tensor, Tensor, Tensor]:
        """Of all scales, masked and rectified.

        Args:
            qkv (Tensor): (B, 3 C, H, W); a head's 3 d channels are together.
            theta (Tensor, optional): Of the mask of every scale, (B, R, C, H, W).

        Returns:
            tuple[Tensor, Tensor, Tensor]: (B, S H, d, N) each.
        """
        scales = [qkv, *(convs(qkv) for convs in self.aggreg)]
        heads = torch.cat(scales, 1).flatten(2).unflatten(1, (-1, 3, self.head_dim))
        qk, v = heads.split([2, 1], 2)
        if theta is not None:
            theta = theta.flatten(3).unflatten(2, (-1, self.head_dim)).transpose(1, 2)
            qk = qk.unflatten(1, (1 + len(self.aggreg), -1))
            qk = (qk * self.mask.binarize(theta[:, None])).flatten(1, 2)
        q, k = F.relu(qk).unbind(2)
        return q, k, v.squeeze(2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Normalised linear attention, (B, S H, d, N) each and in total."""
        dtype, precise = v.dtype, torch.promote_types(v.dtype, torch.float32)
        with torch.autocast(v.device.type, enabled=False):
            q, k, v = q.to(precise), k.to(precise), v.to(precise)
            if self.quadratic and v.shape[-1] <= self.head_dim:
                weights = k.transpose(-1, -2) @ q
                out = v @ (weights / (weights.sum(-2, keepdim=True) + self.eps))
            else:
                keys = k.transpose(-1, -2)
                # a sum, counted as the product that it is published as; ONNX Runtime fuses that
                # product wrongly
                sums = k.sum(-1).unsqueeze(-2) if exporting() else \
                    torch.ones_like(k[:, :, :1]) @ keys
                out = v @ keys @ q / (sums @ q + self.eps)
        return out.to(dtype)
