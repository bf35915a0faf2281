"""Input-dependent mask on queries and keys of DCS-Transformer, section 3.1."""

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.compression.added import AddedLayer
from mmkcr.registry import MODELS
from .noise import NoisyGate, logistic_noise


@MODELS.register_module()
class QKMask(NoisyGate, AddedLayer):
    r"""Selects channels of queries and keys, position by position (DCS, section 3.1).

    :math:`\theta = \mathrm{Linear}(x)`, :math:`M = 1[\sigma((\theta + \epsilon_1 -
    \epsilon_2)/\tau) > 0.5]`, and the attention weights are those of :math:`Q \odot M` and
    :math:`K \odot M`. Backward, the gradient of :math:`M` is that of the sigmoid
    (straight-through). In eval mode the noise is 0: :math:`M = 1[\theta > 0]`.

    The noise is drawn by position and channel, :math:`\epsilon_{id}` as printed, and the same
    for all images of a batch: so it does not depend on how a batch is spread over ranks.

    The weights are parameters of the gate itself, not of a ``Linear`` or ``Conv2d``, so that a
    host's initialisation by layer type does not close the mask.

    Args:
        in_channels (int): Channels of the attention's input x.
        channels (int): Channels D of the queries, and of the keys.
        maps (bool): Whether x has the shape (B, C, H, W) instead of (B, N, C). Defaults to False.
        separate (bool): One mask for queries and another for keys, the paper's ablation
            "QK-Mask". Defaults to False.
        init (float): Initial bias of :math:`\theta`; positive, so that the mask starts open.
            Defaults to 2.0.
        temperature (float): :math:`\tau`, set by ``TemperatureDecayHook``; it scales gradients
            and does not change :math:`M`. Defaults to 1.0.

    Raises:
        ValueError: ``temperature`` is not positive.
    """

    def __init__(self,
                 in_channels: int,
                 channels: int,
                 maps: bool = False,
                 separate: bool = False,
                 init: float = 2.0,
                 temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f'expected a positive mask `temperature`, found {temperature}')
        self.channels = channels
        self.maps = maps
        self.separate = separate
        self.temperature = temperature
        rows = channels * (2 if separate else 1)
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(rows, in_channels), std=.02))
        self.bias = nn.Parameter(torch.full((rows, ), float(init)))
        self._seed: Optional[int] = None
        self._noise: Optional[Tensor] = None
        self._fused: Optional[Tuple[Any, Tensor, Tensor]] = None

    @property
    def rows(self) -> int:
        """Rows of the linear layer: D, or 2 D of separate masks."""
        return len(self.bias)

    def resample(self, generator: Optional[torch.Generator] = None) -> None:
        """Draw the seed of one training step's noise; the shape is known in the forward only."""
        self._seed = int(torch.randint(2**62, (), generator=generator))
        self._noise = None

    def noise_like(self, theta: Tensor) -> Tensor:
        """Logistic noise of the step for every image of a batch, of ``theta``'s shape but 1."""
        if self._noise is None or self._noise.shape != theta.shape[1:]:
            generator = torch.Generator().manual_seed(self._seed)
            self._noise = logistic_noise(theta.shape[1:], generator)
        self._noise = self._noise.to(theta)
        return self._noise

    def forward(self, x: Tensor) -> Tuple[Tensor, Tensor]:
        """Masks of queries and keys for the attention's input.

        Args:
            x (Tensor): (B, N, C), or (B, C, H, W) with ``maps``.

        Returns:
            tuple[Tensor, Tensor]: Of 0 and 1, (B, N, D) or (B, D, H, W) each; the same one
            twice unless ``separate``.
        """
        if self.maps:
            theta = F.conv2d(x, self.weight[..., None, None], self.bias)
        else:
            theta = F.linear(x, self.weight, self.bias)
        return self.binarize(theta)

    def binarize(self, theta: Tensor) -> Tuple[Tensor, Tensor]:
        """As :meth:`forward`, from the linear layer's output."""
        if self.training and self._seed is not None:
            theta = theta + self.noise_like(theta)
        mask = (theta > 0).to(theta.dtype)
        if torch.is_grad_enabled() and theta.requires_grad:
            soft = torch.sigmoid(theta.float() / self.temperature).to(theta.dtype)
            mask = mask + (soft - soft.detach())
        return tuple(mask.chunk(2, 1 if self.maps else -1)) if self.separate else (mask, mask)

    def fused(self, projection: nn.Module) -> Tuple[Tensor, Tensor]:
        """Weight and bias of a projection of x with the mask's rows below its own.

        Computed once and kept until a weight changes or the mode is set, which covers optimizers,
        loading, and averages that are swapped in through ``.data`` before an evaluation. Within
        ``torch.compile`` it is computed each time.

        Args:
            projection (nn.Linear | nn.Conv2d): Of x, to queries, keys and values.

        Returns:
            tuple[Tensor, Tensor]: Weight (O + rows, ...) and bias (O + rows, ).
        """
        if torch.compiler.is_compiling():
            return self._concatenate(projection)
        parts = [p for p in (projection.weight, projection.bias, self.weight, self.bias)
                 if p is not None]
        state = [(id(p), p.data_ptr(), p._version, p.dtype) for p in parts]
        if self._fused is None or self._fused[0] != state:
            self._fused = (state, *self._concatenate(projection))
        return self._fused[1:]

    def train(self, mode: bool = True) -> 'QKMask':
        """Set the mode, and forget the fused weights."""
        self._fused = None
        return super().train(mode)

    def _concatenate(self, projection: nn.Module) -> Tuple[Tensor, Tensor]:
        own = self.weight.reshape(self.rows, *projection.weight.shape[1:])
        bias = projection.bias
        if bias is None:
            bias = self.bias.new_zeros(len(projection.weight))
        return torch.cat([projection.weight, own]).detach(), torch.cat([bias, self.bias]).detach()

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return (f'in_channels={self.weight.shape[1]}, channels={self.channels}, '
                f'separate={self.separate}')
