"""A relaxed choice of k units over all sites (differentiable subset pruning)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core.gate import BaseGate
from mmkcr.registry import MODELS


def relaxed_top_k(logits: Tensor, count: int, temperature: float) -> Tensor:
    r"""Relaxed k-hot vector: the sum of k successive softmaxes.

    .. math:: p_j = \mathrm{softmax}(s_j / \tau), \quad s_{j+1} = s_j + \log(1 - p_j), \quad
        w = \sum_{j=1}^k p_j

    It is not negative and has the sum k. As the temperature falls, it tends to the k-hot vector of
    the k largest logits. At a high temperature single entries can exceed 1.

    Args:
        logits (Tensor): :math:`s_1`, (n,).
        count (int): k, from 0 to n.
        temperature (float): :math:`\tau`, above 0.
    """
    weights = torch.zeros_like(logits)
    below_1 = 1 - torch.finfo(logits.dtype).eps / 2  # its log1p has a finite gradient
    for _ in range(count):
        chosen = torch.softmax(logits / temperature, 0)
        weights = weights + chosen
        # a sure choice, of probability 1, is out of the next ones: with a finite logit one that is
        # far above the others would be chosen again
        logits = torch.where(chosen < 1, logits + torch.log1p(-chosen.clamp_max(below_1)),
                             -torch.inf)
    return weights


@MODELS.register_module()
class RelaxedTopKGate(BaseGate):
    """Chooses the k units of a whole backbone that are *not* kept (DSP, section 3.3.2).

    All sites share one choice. In training it is the relaxed top-k of the logits with Gumbel noise,
    and the mask is 1 minus the result of :func:`relaxed_top_k`. In eval mode it is the k largest
    logits. Before :meth:`join` a gate chooses alone.

    Args:
        total (int): Units of the site.
        count (int): k, in blocks or in single units, over all sites. Defaults to 1.
        blockwise (bool): Choose all units of a site together, with one logit per site; otherwise
            one logit per unit. Defaults to True.
        temperature (float): Set by ``TemperatureDecayHook``. Defaults to 1.
    """

    decided = True
    lowest = 0

    def __init__(self, total: int, count: int = 1, blockwise: bool = True,
                 temperature: float = 1.) -> None:
        super().__init__(total, 0)
        if count < 0:
            raise ValueError(f'expected a `count` of units to replace of at least 0, found {count}')
        if temperature <= 0:
            raise ValueError(f'expected a positive gate `temperature`, found {temperature}')
        self.count, self.blockwise, self.temperature = count, blockwise, temperature
        self.alpha = nn.Parameter(torch.rand(1 if blockwise else total))
        self._members = [self]  # the gates that choose together
        self._of_step: dict[bool, Tensor] = {}  # of the first: relaxed with noise, and without

    def __getstate__(self) -> dict[str, Any]:
        # tensors within a graph cannot be copied
        return {**vars(self), '_of_step': {}}

    def join(self, gates: Sequence[BaseGate]) -> None:
        """Choose together with the other gates of this class.

        Raises:
            ValueError: ``count`` is larger than the number of blocks, or units, of them all.
        """
        self._members = [gate for gate in gates if isinstance(gate, RelaxedTopKGate)]
        units = sum(len(gate.alpha) for gate in self._members)
        if self.count > units:
            raise ValueError(f'expected a `count` of at most the {units} '
                             f'{"blocks" if self.blockwise else "units"} of the backbone, found '
                             f'{self.count}')

    def refresh(self) -> None:
        """Compute the choice once per forward, outside of blocks that may be checkpointed."""
        if self is self._members[0]:
            self._of_step.clear()
            self._relaxed(True)

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw the noise of one training step; the choice of the last one no longer counts."""
        super().resample(generator)
        # a momentum copy that follows may run before this network's own forward refreshes it
        self._members[0]._of_step.clear()

    def _draw(self, generator: torch.Generator | None) -> Tensor:
        # Gumbel(0, 1), by its inverse CDF
        uniform = torch.rand(len(self.alpha), generator=generator, dtype=torch.float64)
        return -torch.log(-torch.log(uniform.clamp(1e-12, 1 - 1e-12))).float()

    def _mine(self, over_all: Tensor) -> Tensor:
        """This site's part of a vector over all logits, shape (total,)."""
        lengths = [len(gate.alpha) for gate in self._members]
        part = over_all.split(lengths)[self._members.index(self)]
        return part.expand(self.total) if self.blockwise else part

    def _relaxed(self, noisy: bool) -> Tensor:
        relaxed = self._members[0]._of_step
        if noisy not in relaxed:
            logits = torch.cat([gate.alpha + gate.noise if noisy and gate.noise is not None
                                else gate.alpha for gate in self._members])
            relaxed[noisy] = relaxed_top_k(logits.float(), self.count, self.temperature)
        return 1 - self._mine(relaxed[noisy])

    def soft_mask(self) -> Tensor:
        """1 minus the relaxed choice, shape (total,); computed once per forward for all sites."""
        return self._relaxed(True)

    def expected_size(self) -> Tensor:
        """Sum of the noise-free relaxed mask."""
        return self._relaxed(False).sum()

    def entropy(self) -> Tensor:
        """Mean binary entropy of the noise-free relaxed mask, in nats."""
        keep = self._relaxed(False).clamp(1e-6, 1 - 1e-6)
        return -(keep * keep.log() + (1 - keep) * (1 - keep).log()).mean()

    def scores(self) -> Tensor:
        """How far each unit's logit lies below the threshold of the choice, detached."""
        logits = torch.cat([gate.alpha.detach() for gate in self._members])
        order = logits.sort(descending=True).values
        order = torch.cat([order[:1] + 2, order, order[-1:] - 2])  # where none or all are chosen
        # halfway between the last logit that is chosen and the first that is not
        return self._mine(order[self.count:self.count + 2].mean() - logits)

    def selection(self) -> Tensor:
        """Units that are not among the k largest logits."""
        logits = torch.cat([gate.alpha.detach() for gate in self._members])
        chosen = torch.zeros_like(logits)
        chosen[logits.sort(descending=True, stable=True).indices[:self.count]] = 1.
        return (self._mine(chosen) == 0).nonzero().flatten()
