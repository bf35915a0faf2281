"""Gumbel-sigmoid channel gate of KCR-Transformer, section 3.1."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.core.gate import BaseGate, logistic_noise
from mmkcr.registry import MODELS


@MODELS.register_module()
class GumbelChannelGate(BaseGate):
    r"""One gate per channel, relaxed by Gumbel noise (KCR v2, section 3.1).

    Training: :math:`\hat g = \sigma((\alpha + \epsilon_1 - \epsilon_2)/\tau)` with independent
    Gumbel(0, 1) noise, whose difference is Logistic(0, 1). Eval: :math:`g = 1[\alpha > 0]`. If
    fewer than ``min_size`` are positive, the ``min_size`` largest :math:`\alpha` are kept.

    Args:
        total (int): Number of channels D.
        init (float): Initial value of every :math:`\alpha`. A positive value
            starts the search from the whole network. Defaults to 2.0.
        temperature (float): :math:`\tau`, set by ``TemperatureDecayHook``. Defaults to 4.5.
        min_size (int): Fewest channels kept, rounded up to whole groups. Defaults to 8.
        group (int): Consecutive channels that share one gate. Runtimes copy the channels that are
            kept fastest in groups of 16 or 32. Defaults to 1, as in the paper.
    """

    #: Defaults for kinds of site that have few units.
    space: Mapping[str, Mapping[str, Any]] = dict(heads=dict(min_size=1))

    def __init__(self, total: int, init: float = 2.0, temperature: float = 4.5, min_size: int = 8,
                 group: int = 1) -> None:
        if group < 1 or total % group:
            raise ValueError(f'expected a `group` of channels that divides the {total} of a gate, '
                             f'found {group}')
        super().__init__(total, -(-min_size // group) * group)
        if temperature <= 0:
            raise ValueError(f'expected a positive gate `temperature`, found {temperature}')
        self.temperature, self.group = temperature, group
        self.alpha = nn.Parameter(torch.full((total // group, ), float(init)))

    def _draw(self, generator: torch.Generator | None) -> Tensor:
        return logistic_noise(self.alpha.shape, generator)

    def _of_channels(self, values: Tensor) -> Tensor:
        """Values of the groups, (D / group,), for each channel, (D,)."""
        return values.repeat_interleave(self.group) if self.group > 1 else values

    def scores(self) -> Tensor:
        """The sampling parameters alpha of all channels, detached, shape (D,)."""
        return self._of_channels(self.alpha.detach())

    def start(self, logits: Tensor) -> None:
        """Take the logits as alpha; a group takes their mean."""
        self.alpha.data.copy_(logits.view(-1, self.group).mean(1))

    def soft_mask(self) -> Tensor:
        """Relaxed mask, shape (D,); noise-free until :meth:`resample` is called."""
        logits = self.alpha if self.noise is None else self.alpha + self.noise
        return self._of_channels(torch.sigmoid(logits / self.temperature))

    def expected_size(self) -> Tensor:
        r"""Expected number of channels that the noise leaves open, at least ``min_size``.

        A channel is open if :math:`\alpha + \epsilon_1 - \epsilon_2 > 0`. This has the probability
        :math:`\sigma(\alpha)` at every temperature, and the mean of the sampled relaxed mask tends
        to it as :math:`\tau` falls. The noise-free relaxation :math:`\sigma(\alpha/\tau)` does not:
        it saturates, and its gradient vanishes with :math:`\tau`. The number N of open gates is
        treated as normal, which gives :math:`E[\max(N, \mathrm{min\_size})]` in closed form.
        """
        keep, least = torch.sigmoid(self.alpha), self.min_size // self.group
        above = keep.sum() - least
        # standard deviation of N; the clamp keeps the root's gradient finite if all gates saturate
        spread = (keep * (1 - keep)).sum().clamp(min=1e-6).sqrt()
        share = above / spread
        density = torch.exp(-share.square() / 2) / math.sqrt(2 * math.pi)
        # E[max(N, m)] = m + (mu - m) Phi(z) + sigma phi(z) with z = (mu - m) / sigma
        expected = self.group * (least + above * torch.special.ndtr(share) + spread * density)
        # a normal N has no upper end; where only one size is left, nothing is to be had
        return expected.clamp(max=self.total)

    def entropy(self) -> Tensor:
        r"""Mean binary entropy of :math:`\sigma(\alpha)`, in nats."""
        keep, drop = nn.functional.logsigmoid(self.alpha), nn.functional.logsigmoid(-self.alpha)
        return -(keep.exp() * keep + drop.exp() * drop).mean()

    def selection(self) -> Tensor:
        """Channels with a positive alpha, at least ``min_size`` of them."""
        alpha = self.scores()
        count = max(int((alpha > 0).sum()), self.min_size)
        order = torch.sort(alpha, descending=True, stable=True).indices
        return order[:count].sort().values

    def hard_size(self) -> Tensor:
        """Number of positive alphas, at least ``min_size``, without a device synchronisation."""
        return (self.scores() > 0).sum().clamp(min=self.min_size)
