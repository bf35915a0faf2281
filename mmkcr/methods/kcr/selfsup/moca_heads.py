"""Decoder and prediction heads of MOCA.

Shapes: B images, N tokens per image, V of them visible, C channels of the student, D of the
decoder, K words.
"""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.model import BaseModule
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from mmpretrain.models.utils import build_2d_sincos_position_embedding
from torch import Tensor, nn
from torch.nn.functional import kl_div, normalize

from mmkcr.registry import MODELS

_INIT = [dict(type='Xavier', distribution='uniform', layer='Linear'),
         dict(type='Constant', layer='LayerNorm', val=1.)]


@MODELS.register_module()
class MOCADecoder(BaseModule):
    """Predicts tokens' features from an early layer's visible tokens and the image's embedding.

    The image's embedding is all that the decoder gets of the last layers (a *condenser*), so it
    has to describe the masked places.

    Args:
        size (tuple[int, int]): Rows and columns of the N tokens.
        in_channels (int): C.
        embed_dims (int): D. Defaults to 512.
        depth (int): Blocks. Defaults to 2.
        num_heads (int): Their heads. Defaults to 16.
        init_cfg (dict | list[dict], optional): See ``BaseModule``.
    """

    def __init__(self, size: tuple[int, int], in_channels: int, embed_dims: int = 512,
                 depth: int = 2, num_heads: int = 16, init_cfg: Any = _INIT) -> None:
        super().__init__(init_cfg)
        self.norm = nn.LayerNorm(in_channels, eps=1e-6)
        self.embed = nn.Linear(in_channels, embed_dims)
        self.mask_token = nn.Parameter(0.02 * torch.randn(1, 1, embed_dims))
        self.register_buffer('positions', build_2d_sincos_position_embedding(
            size, embed_dims, cls_token=True).float(), persistent=False)
        self.blocks = nn.Sequential(*(
            TransformerEncoderLayer(embed_dims, num_heads, 4 * embed_dims,
                                    norm_cfg=dict(type='LN', eps=1e-6)) for _ in range(depth)))
        self.last_norm = nn.LayerNorm(embed_dims, eps=1e-6)

    def forward(self, image: Tensor, tokens: Tensor, order: Tensor,
                decoded: float = 1.) -> tuple[Tensor, Tensor]:
        """Decode a share of the tokens.

        Args:
            image (Tensor): Embedding of every image, (B, C).
            tokens (Tensor): An early layer's tokens at the visible places, (B, V, C).
            order (Tensor): Permutation of the places, the visible ones first, (B, N).
            decoded (float): Share of the places that is decoded: the first ones of ``order``, and
                at least the visible ones. Defaults to 1.

        Returns:
            tuple[Tensor]: Features (B, P, D), places (B, P).
        """
        visible = tokens.shape[1]
        places = order[:, :max(visible, int(decoded * order.shape[1]))]  # (B, P)
        # (B, 1 + V, D) and (B, P - V, D)
        known = self.embed(torch.cat([image[:, None], self.norm(tokens)], 1))
        masked = self.mask_token.expand(len(known), places.shape[1] - visible, -1)
        positions = self.positions.to(known.dtype)
        # (B, P, D); entry 0 of the positions is that of the image's embedding
        where = positions[0, 1:][places]
        x = torch.cat([known[:, :1] + positions[:, :1],
                       torch.cat([known[:, 1:], masked], 1) + where], 1)
        return self.last_norm(self.blocks(x))[:, 1:], places


class Prototypes(BaseModule):
    r"""A classifier over words whose weights are computed from the words.

    Logits are :math:`\kappa\, x \cdot \widehat{(G(w) + S(w))}_k`. G is a perceptron with one hidden
    layer and batch norm over the words (in eval mode, too). S is the identity, or a linear map if
    the widths differ. The hat divides by the norm. So the classifier always belongs to the current
    codebook.

    Args:
        channels (int): Width of the words.
        features (int): Width of the classified features.
        hidden (int): Width of the hidden layer.
        scale (float): :math:`\kappa`.
    """

    def __init__(self, channels: int, features: int, hidden: int, scale: float) -> None:
        super().__init__(_INIT)
        self.scale = scale
        self.generator = nn.Sequential(
            nn.Linear(channels, hidden, bias=False),
            nn.BatchNorm1d(hidden, track_running_stats=False), nn.ReLU(),
            nn.Linear(hidden, features))
        self.skip = nn.Identity() if channels == features else nn.Linear(channels, features)

    def forward(self, features: Tensor, words: Tensor) -> Tensor:
        """Logits (..., K) of features (..., F) for words (K, C)."""
        words = normalize(words, dim=1)
        # (..., F) @ (F, K)
        return self.scale * features @ normalize(self.generator(words) + self.skip(words), dim=1).T


@MODELS.register_module()
class MOCAHead(BaseModule):
    """The two losses of MOCA: Kullback-Leibler divergences from the teacher's assignments.

    Args:
        in_channels (int): C, of the student and of the words.
        decoder_channels (int, optional): D. Defaults to None: no loss of tokens.
        hidden_ratio (float): Hidden width of the prototypes' perceptrons over C. Defaults to 2.
        scale (float): Scale of the logits. Defaults to 5.
        image_weight (float): Weight of the images' loss. Defaults to 1.
        token_weight (float): Weight of the tokens' loss. Defaults to 1.
        init_cfg (dict, optional): See ``BaseModule``.
    """

    def __init__(self, in_channels: int, decoder_channels: int | None = None,
                 hidden_ratio: float = 2., scale: float = 5., image_weight: float = 1.,
                 token_weight: float = 1., init_cfg: Mapping[str, Any] | None = None) -> None:
        super().__init__(init_cfg)
        hidden = int(hidden_ratio * in_channels)
        self.image = Prototypes(in_channels, in_channels, hidden, scale)
        self.tokens = None if decoder_channels is None else \
            Prototypes(in_channels, decoder_channels, hidden, scale)
        self.image_weight, self.token_weight = image_weight, token_weight

    def image_loss(self, images: Tensor, target: Tensor, words: Tensor) -> Tensor:
        """Loss of masked images' embeddings (B, C) for the other views' assignments (B, K)."""
        return self.image_weight * _divergence(self.image(images, words), target)

    def token_loss(self, features: Tensor, target: Tensor, words: Tensor) -> Tensor:
        """Loss of decoded tokens (B, P, D) for the assignments (B, P, K) of the same places."""
        return self.token_weight * _divergence(self.tokens(features, words), target)


def _divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Kullback-Leibler divergence, the mean over all but the last dimension."""
    logits = logits.flatten(0, -2).float()
    # KL(target || softmax(logits))
    return kl_div(logits.log_softmax(-1), target.flatten(0, -2), reduction='batchmean')
