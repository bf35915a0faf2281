"""Statistics of attention over a data set: entropy and rank by layer and head (DCS section C)."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmkcr.evaluation.features import preserve_state
from mmkcr.models.tasks import unwrap
from mmkcr.visualization import show_progress
from .attention_tap import Attention, AttentionTap


def row_entropy(weights: Tensor) -> Tensor:
    """Entropy of every row of attention weights (..., N, N), in nats, (..., N).

    Lower is more decided. A row is brought to the sum 1; one of zeros, a query
    without an open channel, attends to nothing and counts as uniform: log N.
    """
    total = weights.sum(-1, keepdim=True)
    rows = torch.where(total > 0, weights / total.clamp(min=1e-30), 1 / weights.shape[-1])
    return torch.special.entr(rows).sum(-1)


class AttentionStatistics:
    """Entropy and rank of one layer, head by head, over a stream of batches.

    Args:
        bins (int): Of the histogram over [0, log N]. Defaults to 40.
    """

    def __init__(self, bins: int = 40) -> None:
        self.bins, self.rows, self.maps = bins, 0, 0

    def add(self, attention: Attention) -> None:
        """Add a batch."""
        weights = attention.weights
        if self.rows == 0:
            self.heads, self.positions = weights.shape[1], weights.shape[-1]
            self.width = attention.width
            self.entropy, self.rank = torch.zeros(2, self.heads, dtype=torch.float64)
            self.histogram = torch.zeros(self.heads, self.bins, dtype=torch.float64)
        if weights.shape[-1] != self.positions:
            raise ValueError(f'expected images of one size, found attention over '
                             f'`{weights.shape[-1]}` positions after {self.positions}')
        # rounding may lift uniform rows above log N, out of the histogram
        entropy = row_entropy(weights).clamp(0, self.limit).transpose(0, 1).flatten(1).cpu()
        self.entropy += entropy.double().sum(1)
        for head, values in enumerate(entropy):
            self.histogram[head] += torch.histc(values, self.bins, 0, self.limit)
        self.rank += torch.linalg.matrix_rank(attention.product).double().sum(0).cpu()
        self.rows += entropy.shape[1]
        self.maps += len(weights)

    @property
    def limit(self) -> float:
        """float: Largest entropy, log N."""
        return math.log(self.positions) or 1.

    def values(self) -> dict[str, Any]:
        """dict: ``positions`` N, ``width`` d, and by head ``entropy``, ``rank``, ``histogram``."""
        return dict(positions=self.positions, width=self.width, limit=self.limit,
                    entropy=(self.entropy / self.rows).tolist(),
                    rank=(self.rank / self.maps).tolist(),
                    histogram=(self.histogram / self.rows).tolist())


@torch.no_grad()
def attention_statistics(model: nn.Module, loader: DataLoader, images: int | None = None,
                         bins: int = 40) -> dict[str, dict[str, Any]]:
    """Entropy and rank of every attention layer of a classifier.

    Args:
        model (BaseModel): The model, or a wrapper around it.
        loader (DataLoader): As of :func:`~lab.kernel_analysis.split_loader`.
        images (int, optional): How many are used. Defaults to all.
        bins (int): See :class:`AttentionStatistics`. Defaults to 40.

    Returns:
        dict[str, dict]: :meth:`AttentionStatistics.values` by module path.
    """
    model, seen = unwrap(model), 0
    with preserve_state(model), AttentionTap(model) as tap:
        found = {name: AttentionStatistics(bins) for name in tap.layers}
        for batch in show_progress(loader, 'Attention'):
            data = model.data_preprocessor(batch, False)
            left = None if images is None else images - seen
            inputs = data['inputs'][:left]
            model(inputs, mode='tensor')
            for name, attention in tap.attention.items():
                found[name].add(attention)
            seen += len(inputs)
            if images is not None and seen >= images:
                break
    return {name: statistics.values() for name, statistics in found.items() if statistics.rows}
