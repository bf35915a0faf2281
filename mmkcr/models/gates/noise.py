"""What gates with noise have in common."""

from abc import ABCMeta, abstractmethod
from typing import Optional, Sequence

import torch
from torch import Tensor, nn


class NoisyGate(nn.Module, metaclass=ABCMeta):
    """A relaxation that gets new noise in every training step, and none in eval mode."""

    @abstractmethod
    def resample(self, generator: Optional[torch.Generator] = None) -> None:
        """Draw the noise of one training step.

        Args:
            generator (torch.Generator, optional): A CPU generator; its state alone decides the
                noise, on every device and rank.
        """


def logistic_noise(shape: Sequence[int], generator: Optional[torch.Generator]) -> Tensor:
    """Differences of two independent Gumbel(0, 1) variables, on the CPU, in fp32."""
    uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return torch.logit(uniform, eps=1e-12).float()
