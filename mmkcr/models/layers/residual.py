"""Blocks of subnets."""

from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from mmpretrain.models.utils import MultiheadAttention
from torch import Tensor, nn

from mmkcr.models.execution import eager_inference


class InPlaceEncoderLayer(TransformerEncoderLayer):
    """A ViT block that adds its input to what attention has just computed, in place.

    So it does in eager inference on a CPU; elsewhere it is the host's.

    Args:
        block (TransformerEncoderLayer): Its parts are shared, under their own keys.
    """

    def __init__(self, block: TransformerEncoderLayer) -> None:
        nn.Module.__init__(self)
        vars(self).update(vars(block))

    def forward(self, x: Tensor) -> Tensor:
        """Of (B, N, C)."""
        if not eager_inference(x) or self.attn._forward_hooks:
            return super().forward(x)  # a hook may keep what attention returns
        out = self.attn(self.ln1(x))
        x = out.add_(x) if out.dtype == x.dtype else x + out
        return self.ffn(self.ln2(x), identity=x)


def use_in_place_sums(root: nn.Module) -> None:
    """Exchange the ViT blocks below a module for those that add in place; keys stay.

    Args:
        root (nn.Module): Changed in place.
    """
    for module in list(root.modules()):
        for name, child in module.named_children():
            if type(child) is TransformerEncoderLayer and type(child.attn) is MultiheadAttention:
                setattr(module, name, InPlaceEncoderLayer(child))
