"""What every gate offers, whatever its relaxation."""

from abc import ABCMeta, abstractmethod
from typing import List, Optional, Sequence, Tuple

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


class BaseGate(NoisyGate):
    """A relaxed choice of some of ``total`` units of one dimension (a *site*).

    A gate knows neither MACs nor the layer that it masks. In training mode
    its forward gives a soft mask that depends on the noise drawn last by
    :meth:`resample`; in eval mode the hard mask of :meth:`selection`.

    Args:
        total (int): Number of units.
        min_size (int): Fewest units that a selection keeps. Defaults to 1.

    Raises:
        ValueError: ``min_size`` is not within [1, total].
    """

    #: Whether the gate itself says how many units are kept, so that no budget may.
    decided: bool = False
    #: The smallest ``min_size``.
    lowest: int = 1

    def __init__(self, total: int, min_size: int = 1) -> None:
        super().__init__()
        if not self.lowest <= min_size <= total:
            raise ValueError(f'expected `min_size` of a gate within [{self.lowest}, {total}], '
                             f'found {min_size}')
        self.held_open = False
        self.total = total
        self.min_size = min_size
        self.noise: Optional[Tensor] = None
        self._leader: Tuple['BaseGate', ...] = ()  # in a tuple: no sub-module

    def follow(self, leader: 'BaseGate') -> None:
        """Mask as another gate does, from now on: that of the network whose copy this one is in.

        Args:
            leader (BaseGate): Of as many units.
        """
        self._leader = (leader, )

    @property
    def present(self) -> int:
        """Units that are physically there: all, unless the search slices as it goes."""
        return self.total

    def join(self, gates: Sequence['BaseGate']) -> None:
        """Meet all gates of the backbone, once they are built: for choices made together."""

    def refresh(self) -> None:
        """Begin a forward of the backbone: forget what was computed for the last one."""

    def resample(self, generator: Optional[torch.Generator] = None) -> None:
        """Draw the noise of one training step.

        Drawn once per step and kept, so that a block recomputed by gradient
        checkpointing sees the same mask; drawn on the CPU, so that every
        device and rank with the same generator state gets the same numbers.

        Args:
            generator (torch.Generator, optional): A CPU generator.
        """
        if not self._leader:  # what follows uses up no noise
            self.noise = self._draw(generator).to(self.scores().device)

    @abstractmethod
    def _draw(self, generator: Optional[torch.Generator]) -> Tensor:
        """Noise of shape (total,) on the CPU."""

    @abstractmethod
    def scores(self) -> Tensor:
        """Preference for each unit, shape (total,), higher is kept first."""

    def start(self, logits: Tensor) -> None:
        """Begin a search with a preference for units.

        Args:
            logits (Tensor): Of every unit to be kept, shape (total,).

        Raises:
            ValueError: The gate has no such start.
        """
        raise ValueError(f'expected gates that can begin with scores of units, found '
                         f'`{type(self).__name__}`')

    @abstractmethod
    def soft_mask(self) -> Tensor:
        """Relaxed mask in [0, 1], shape (total,), with the noise drawn last."""

    @abstractmethod
    def expected_size(self) -> Tensor:
        """Expected number of units that the hard gate keeps, over its noise.

        Returns:
            Tensor: A differentiable scalar, at least ``min_size``.
        """

    @abstractmethod
    def entropy(self) -> Tensor:
        """Mean entropy of the units' choices in nats, a differentiable scalar."""

    @abstractmethod
    def selection(self) -> Tensor:
        """Kept units of the hard gate, int64, ascending, at least ``min_size``."""

    def hard_size(self) -> Tensor:
        """Number of units that :meth:`selection` keeps, int64, a scalar."""
        return torch.tensor(len(self.selection()), device=self.scores().device)

    def options(self) -> Optional[List[Tuple[int, float]]]:
        """Sizes on offer with their logits, of a gate that may not keep any number of units.

        Returns:
            list[tuple[int, float]] | None: None if every size is possible.
        """
        return None

    def support(self) -> Optional[Tensor]:
        """Weights of the units present in statistics over them, shape (present,).

        Returns:
            Tensor | None: 0 for units that cannot be kept; None if all count alike.
        """
        return None if self.held_open else self()

    def hard_mask(self) -> Tensor:
        """Mask of :meth:`selection`: 0 or 1, shape (total,)."""
        scores = self.scores()
        return torch.zeros_like(scores).index_fill_(0, self.selection(), 1.)

    def forward(self) -> Tensor:
        """The mask, shape (total,): soft in training, hard in eval, 1 while ``held_open``."""
        for leader in self._leader:
            return leader()
        if self.held_open:
            return torch.ones_like(self.scores())
        return self.soft_mask() if self.training else self.hard_mask()

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return f'total={self.total}, min_size={self.min_size}'
