"""A codebook of a teacher's tokens, renewed during training.

Shapes: B images, N tokens per image, C channels, K words.
"""

import torch
from mmengine.dist import all_reduce, get_dist_info
from torch import Tensor, nn
from torch.nn.functional import normalize

from mmkcr.registry import MODELS


@MODELS.register_module()
class OnlineCodebook(nn.Module):
    r"""Words that tokens are assigned to: a queue of tokens of earlier batches (MOCA).

    Token i is assigned to word k by :math:`q_{ik} = softmax_k(\kappa s_{ik} / \sigma)`, with the
    cosine :math:`s_{ik}` and :math:`\sigma`, the running mean over tokens of
    :math:`\max_k s_{ik} - mean_k s_{ik}`. So the sharpness of assignments does not depend on the
    scale of the cosines. An image's assignment is the mean over its inner tokens.

    An update replaces the oldest words by inner tokens, one from each of as many images of the
    batch; a smaller batch gives several per image. The draw is a function of the seed and the
    number of updates. So a resumed run draws what an unbroken one does, and several processes draw
    what one process with the whole batch does.

    Args:
        channels (int): C.
        words (int): K. Defaults to 4096.
        new_words (int): Words replaced in an update, a divisor of K. Defaults to 16.
        sharpness (float): :math:`\kappa`. Defaults to 10.
        border (int): Rows and columns of tokens at the edge of an image that are neither words
            nor part of an image's assignment. Defaults to 2.
        decay (float): Decay of the running mean. Defaults to 0.99.
        seed (int): Seed of the draws. Defaults to 0.

    Raises:
        ValueError: ``new_words`` is no divisor of ``words``.
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
        """Assign tokens to words.

        Args:
            tokens (Tensor): (B, N, C).
            size (tuple[int, int]): Rows and columns of the N tokens.

        Returns:
            tuple[Tensor]: Assignments of the tokens (B, N, K) and of the images (B, K), rows
            sum to 1, and the spread of the cosines, a scalar for :meth:`update`.
        """
        cosines = (normalize(tokens, dim=-1) @ self.words.T.to(tokens.dtype)).float()  # (B, N, K)
        spread = (cosines.amax(-1) - cosines.mean(-1)).mean()
        codes = torch.softmax(cosines * (self.sharpness / self.spread), -1)
        return codes, codes[:, self._inner(size, tokens.device)].mean(1), spread

    @torch.no_grad()
    def update(self, tokens: Tensor, size: tuple[int, int], spread: Tensor) -> None:
        """Replace the oldest words by tokens of all processes, and update the running spread.

        It takes the arguments of :meth:`forward` and the spread that this gave.
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
