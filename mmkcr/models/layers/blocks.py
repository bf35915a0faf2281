"""Blocks of subnets."""

import torch
import torch.nn.functional as F
from mmpretrain.models.backbones.mobilenet_v2 import InvertedResidual
from mmpretrain.models.backbones.mobilevit import MobileVitBlock
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from mmpretrain.models.utils import MultiheadAttention
from torch import Tensor, nn

from mmkcr.models.execution import eager_inference
from .conv import OnePassConvModule, plus
from .exchange import SharesParts
from .masked_attention import MaskedAttention


class InPlaceEncoderLayer(SharesParts, TransformerEncoderLayer):
    """A ViT block that adds its input to what attention has just computed, in place.

    So it does in eager inference on a CPU; elsewhere it is the host's.

    Args:
        block (TransformerEncoderLayer): Its parts are shared, under their own keys.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Of (B, N, C)."""
        if not eager_inference(x) or self.attn._forward_hooks:
            return super().forward(x)  # a hook may keep what attention returns
        out = self.attn(self.ln1(x))
        x = out.add_(x) if out.dtype == x.dtype else x + out
        return self.ffn(self.ln2(x), identity=x)


class OnePassInvertedResidual(SharesParts, InvertedResidual):
    """An inverted residual whose last convolution adds the identity while it writes its output.

    Args:
        block (InvertedResidual): Its parts are shared, under their own keys.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Of (B, C, H, W)."""
        if not (self.use_res_connect and eager_inference(x)) or self.conv._forward_hooks:
            return super().forward(x)
        out = x
        for module in self.conv[:-1]:
            out = module(out)
        return plus(x, self.conv[-1], out)


class RowwiseMobileVitBlock(SharesParts, MobileVitBlock):
    """A MobileViT block that cuts maps into patches, and puts them together, in one copy each.

    Its convolutions give channels last in eager inference on a CPU, and there it moves a
    position's channels together. The host moves number by number, four times.

    Args:
        block (MobileVitBlock): Its parts are shared, under their own keys.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Of (B, C, H, W)."""
        if not eager_inference(x):
            return super().forward(x)
        shortcut, x = x, self.local_rep(x)
        (high, wide), size = self.patch_size, x.shape[2:]
        rows, columns = -(-size[0] // high), -(-size[1] // wide)
        if size != (rows * high, columns * wide):
            x = F.interpolate(x, (rows * high, columns * wide), mode='bilinear')
        batch, channels = x.shape[:2]
        x = x.permute(0, 2, 3, 1).reshape(batch, rows, high, columns, wide, channels)
        x = x.permute(0, 2, 4, 1, 3, 5).reshape(-1, rows * columns, channels)
        x = self.global_rep(x).reshape(batch, high, wide, rows, columns, channels)
        x = x.permute(0, 3, 1, 4, 2, 5).reshape(batch, rows * high, columns * wide, channels)
        x = x.permute(0, 3, 1, 2)
        if size != x.shape[2:]:
            x = F.interpolate(x, size, mode='bilinear')
        x = self.conv_proj(x)
        return x if self.conv_fusion is None else self.conv_fusion(torch.cat((shortcut, x), 1))


def use_eager_blocks(root: nn.Module) -> None:
    """Exchange the blocks below a module for those that take fewer passes; keys stay.

    Args:
        root (nn.Module): Changed in place; its convolutions are in one pass.
    """
    for module in list(root.modules()):
        for name, child in module.named_children():
            block = None
            if type(child) is TransformerEncoderLayer:
                fits = type(child.attn) in (MultiheadAttention, MaskedAttention)
                block = InPlaceEncoderLayer if fits else None
            elif type(child) is MobileVitBlock:
                block = RowwiseMobileVitBlock
            elif type(child) is InvertedResidual and type(child.conv[-1]) is OnePassConvModule:
                block = OnePassInvertedResidual
            if block is not None:
                setattr(module, name, block(child))
