"""Codebook of the teacher's tokens, decoder and prediction heads of MOCA.

Shapes: B images, N tokens per image, V of them visible, C channels of student and teacher, D of
the decoder, K words.
"""

from collections.abc import Mapping
from typing import Any

import torch
from mmengine.dist import all_reduce, get_dist_info
from mmengine.model import BaseModule
from mmpretrain.models.backbones.vision_transformer import TransformerEncoderLayer
from mmpretrain.models.utils import build_2d_sincos_position_embedding
from torch import Tensor, nn
from torch.nn.functional import kl_div, normalize

from mmkcr.registry import MODELS

_INIT = [dict(type='Xavier', distribution='uniform', layer='Linear'),
         dict(type='Constant', layer='LayerNorm', val=1.)]


@MODELS.register_module()
class OnlineCodebook(nn.Module):
    r"""Words that tokens are assigned to: a queue of tokens of earlier batches (MOCA).

    Token i is assigned to word k by :math:`q_{ik} = softmax_k(\kappa s_{ik} / \sigma)`, with the
    cosine :math:`s_{ik}` and :math:`\sigma`, the running mean over tokens of
    :math:`\max_k s_{ik} - mean_k s_{ik}`. So the sharpness of assignments does not depend on the
    scale of the cosines. An image's assignment is the mean over its inner tokens.

    An update replaces the oldest words by inner tokens, one from each of as many images of the
    batch; a smaller batch gives several per image. The draw is a function of the seed and the
    number of updates, for several processes as for one with the whole batch.

    Args:
        channels (int): C.
        words (int): K. Defaults to 4096.
        new_words (int): Words replaced in an update, a divisor of K. Defaults to 16.
        sharpness (float): :math:`\kappa`. Defaults to 10.
        border (int): Rows and columns of tokens at the edge of an image that are neither words
            nor part of an image's assignment. Defaults to 2.
        decay (float): Decay of the running mean. Defaults to 0.99.
        seed (int): Seed of the draws. Defaults to 0.
    """

    def __init__(self, channels: int, words: int = 4096, new_words: int = 16,
                 sharpness: float = 10., border: int = 2, decay: float = 0.99,
                 seed: int = 0) -> None:
        super().__init__()
        if not 1 <= new_words <= words or words % new_words:
            raise ValueError(f'expected `new_words` of a codebook that divide its {words} words, '
                             f'found {new_words}')
        self.new_words, self.sharpness, self.border = new_words, sharpness, border
        self.decay, self.seed = decay, seed
        first = torch.randn(words, channels, generator=torch.Generator().manual_seed(seed))
        self.register_buffer('words', normalize(first.clamp(min=0), dim=1))
        self.register_buffer('spread', torch.tensor(0.5))
        self.register_buffer('steps', torch.tensor(0, dtype=torch.long))

    def forward(self, tokens: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Assign tokens (B, N, C) of a ``size`` in rows and columns to words.

        It gives assignments of the tokens (B, N, K) and of the images (B, K), in rows of sum 1,
        and the spread of the cosines, a scalar for :meth:`update`.
        """
        cosines = (normalize(tokens, dim=-1) @ self.words.T.to(tokens.dtype)).float()  # (B, N, K)
        spread = (cosines.amax(-1) - cosines.mean(-1)).mean()
        codes = torch.softmax(cosines * (self.sharpness / self.spread), -1)
        return codes, codes[:, self._inner(size, tokens.device)].mean(1), spread

    @torch.no_grad()
    def update(self, tokens: Tensor, size: tuple[int, int], spread: Tensor) -> None:
        """Replace the oldest words by tokens of all processes, and update the running spread.

        Args:
            tokens (Tensor): Of images, (B, N, C).
            size (tuple[int, int]): Rows and columns of the tokens.
            spread (Tensor): Of the cosines, a scalar, as :meth:`forward` gives it.

        Raises:
            ValueError: The border leaves no token.
        """
        (rank, world), step = get_dist_info(), int(self.steps)
        images = len(tokens) * world
        generator = torch.Generator().manual_seed(self.seed * 2**31 + step)
        order = torch.randperm(images, generator=generator)
        # all images in turn, until there are enough (rounded up)
        chosen = order.repeat(-(-self.new_words // images))[:self.new_words].to(tokens.device)
        inner = self._inner(size, tokens.device)
        places = inner[torch.randint(len(inner), chosen.shape, generator=generator)]
        # image j of process r is image j * world + r of all
        mine = chosen % world == rank
        words = torch.zeros_like(self.words[:self.new_words])
        words[mine] = tokens[chosen[mine] // world, places[mine]].to(words.dtype)
        all_reduce(words)  # each row is 0 but on one rank
        first = step * self.new_words % len(self.words)
        self.words[first:first + self.new_words] = normalize(words, dim=1)
        spread = spread.detach().clone()
        all_reduce(spread, 'mean')
        self.spread.lerp_(spread.to(self.spread.dtype), 1 - self.decay)
        self.steps += 1

    def _inner(self, size: tuple[int, int], device: torch.device) -> Tensor:
        """Positions of the tokens away from the edge of the image."""
        rows, columns = size
        grid = torch.arange(rows * columns, device=device).view(rows, columns)
        edge = self.border
        inner = grid[edge:rows - edge, edge:columns - edge].flatten()
        if not len(inner):
            raise ValueError(f'expected a `border` of the codebook that leaves some of {rows} x '
                             f'{columns} tokens, found {edge}')
        return inner


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
        """Features (B, P, D) and places (B, P) of a share of the tokens.

        They come from the embedding of every image, (B, C), and an early layer's tokens at the
        visible places, (B, V, C). The order (B, N) permutes the places, the visible ones first; the
        first ones are decoded, a share ``decoded``, and at least the visible ones.
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
        image_weight, token_weight (float): Weights of the two losses. Default to 1.
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
        """Loss of masked images' embeddings, a scalar.

        Args:
            images (Tensor): Embeddings of masked images, (B, C).
            target (Tensor): Assignments of the other views, (B, K).
            words (Tensor): The codebook, (K, C).
        """
        return self.image_weight * _divergence(self.image(images, words), target)

    def token_loss(self, features: Tensor, target: Tensor, words: Tensor) -> Tensor:
        """Loss of decoded tokens, a scalar.

        Args:
            features (Tensor): Decoded tokens, (B, P, D).
            target (Tensor): Assignments of the same places, (B, P, K).
            words (Tensor): The codebook, (K, C).
        """
        return self.token_weight * _divergence(self.tokens(features, words), target)


def _divergence(logits: Tensor, target: Tensor) -> Tensor:
    """Kullback-Leibler divergence, the mean over all but the last dimension."""
    logits = logits.flatten(0, -2).float()
    # KL(target || softmax(logits))
    return kl_div(logits.log_softmax(-1), target.flatten(0, -2), reduction='batchmean')
