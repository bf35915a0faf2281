"""The interface of all gates, whatever their relaxation."""

from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class NoisyGate(nn.Module, metaclass=ABCMeta):
    """A relaxation that gets new noise in every training step, and none in eval mode."""

    @abstractmethod
    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw the noise of one training step, from the state of a CPU generator alone.

        So it is the same on every device and rank.
        """


def resample_gates(root: nn.Module, seed: int, step: int) -> None:
    """Draw the noise of a training step for all gates.

    Args:
        root (nn.Module): Module above the gates.
        seed (int): Seed of the run, the same on all ranks.
        step (int): Number of the training step.
    """
    # a new generator per step: the draw does not depend on what ran before
    generator = torch.Generator().manual_seed(seed * 2**31 + step)
    for gate in root.modules():
        if isinstance(gate, NoisyGate):
            gate.resample(generator)


def logistic_noise(shape: Sequence[int], generator: torch.Generator | None) -> Tensor:
    """Differences of two independent Gumbel(0, 1) variables, on the CPU, in fp32."""
    # such a difference is Logistic(0, 1), whose inverse CDF is the logit
    uniform = torch.rand(*shape, generator=generator, dtype=torch.float64)
    return torch.logit(uniform, eps=1e-12).float()


class BaseGate(NoisyGate):
    """A relaxed choice of some of ``total`` units of one dimension (a *site*).

    In training mode its forward gives a soft mask that depends on the noise drawn last by
    :meth:`resample`, in eval mode the hard mask of :meth:`selection`.

    Args:
        total (int): Number of units.
        min_size (int): Fewest units that a selection keeps, within [1, total]. Defaults to 1.
    """

    #: Whether the gate itself decides how many units are kept, so that no budget is applied.
    decided: bool = False
    #: Whether the site is sliced while it trains (Once for Both). The gate then has the buffers
    #: ``alive`` (options that are left), ``kept`` (units that are there) and ``folded`` (whether
    #: its mask is in the weights), and the methods ``keepable``, ``scale`` and ``fold``.
    slices: bool = False
    #: Whether the constructor takes ``groups``, so that all heads keep equally many units.
    grouped: bool = False
    #: Arguments of the constructor by kind of site, which configs override.
    space: Mapping[str, Mapping[str, Any]] = {}
    #: The smallest ``min_size`` that the class accepts.
    lowest: int = 1
    #: Consecutive units that are kept or dropped together.
    group: int = 1

    def __init__(self, total: int, min_size: int = 1) -> None:
        super().__init__()
        if not self.lowest <= min_size <= total:
            raise ValueError(f'expected `min_size` of a gate within [{self.lowest}, {total}], '
                             f'found {min_size}')
        self.held_open = False
        self.total = total
        self.min_size = min_size
        self.noise: Tensor | None = None
        self._leader: tuple['BaseGate', ...] = ()  # a tuple, so that it is not a sub-module

    def mask_like(self, leader: 'BaseGate') -> None:
        """From now on return the mask of another gate of as many units."""
        self._leader = (leader, )

    @property
    def present(self) -> int:
        """Units that are physically there: all, unless the search slices while it trains."""
        return self.total

    def join(self, gates: Sequence['BaseGate']) -> None:
        """Called once with all gates of the backbone, for choices that gates make together."""

    def refresh(self) -> None:
        """Called before each forward of the backbone: drop results of the last one."""

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw the noise of one training step, which a recomputed block sees again."""
        if not self._leader:  # a follower must not advance the generator
            self.noise = self._draw(generator).to(self.scores().device)

    @abstractmethod
    def _draw(self, generator: torch.Generator | None) -> Tensor:
        """Noise of shape (total,) on the CPU."""

    @abstractmethod
    def scores(self) -> Tensor:
        """Preference for each unit, shape (total,); units of higher score are kept first."""

    def start(self, logits: Tensor) -> None:
        """Initialise the gate for a search from logits of keeping its units, shape (total,).

        Raises:
            ValueError: The class cannot begin with scores.
        """
        raise ValueError(f'expected gates that can begin with scores of units, found '
                         f'`{type(self).__name__}`')

    @abstractmethod
    def soft_mask(self) -> Tensor:
        """Relaxed mask in [0, 1], shape (total,), with the noise drawn last."""

    @abstractmethod
    def expected_size(self) -> Tensor:
        """Expected number of units that the hard gate keeps; the expectation is over its noise.

        It is a differentiable scalar of at least ``min_size``.
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

    def options(self) -> list[tuple[int, float]] | None:
        """Possible sizes with their logits; None if every size is possible."""
        return None

    def support(self) -> Tensor | None:
        """Weights of the present units in statistics over them (norms), shape (present,).

        They are 0 for units that cannot be kept; None if all units count alike.
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
