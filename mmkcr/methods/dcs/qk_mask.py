"""Input-dependent mask on queries and keys of DCS-Transformer, section 3.1."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmkcr.core.added import AddedLayer
from mmkcr.core.gate import NoisyGate, logistic_noise
from mmkcr.registry import MODELS


@MODELS.register_module()
class QKMask(NoisyGate, AddedLayer):
    r"""Input-dependent selection of query and key channels at each position (DCS, section 3.1).

    :math:`\theta = \mathrm{Linear}(x)`, :math:`M = 1[\sigma((\theta + \epsilon_1 -
    \epsilon_2)/\tau) > 0.5]`, and attention uses :math:`Q \odot M` and :math:`K \odot M`. In the
    backward pass the gradient of :math:`M` is that of the sigmoid (straight-through). In eval
    mode the noise is 0: :math:`M = 1[\theta > 0]`.

    The noise is drawn per position and channel and is the same for all images of a batch, however
    they are spread over ranks. The weights are parameters of the gate itself, so a host that
    initialises its layers by type does not close the mask.

    Args:
        in_channels (int): Channels C of the attention's input x.
        channels (int): Channels D of the queries, and of the keys, head by head.
        maps (bool): Whether x has the shape (B, C, H, W) instead of (B, N, C). Defaults to False.
        separate (bool): One mask for queries and another for keys ("QK-Mask"). Defaults to False.
        init (float): Initial bias of :math:`\theta`. A positive value starts with an open mask.
            Defaults to 2.0.
        temperature (float): :math:`\tau`, set by ``TemperatureDecayHook``. It scales gradients
            and does not change :math:`M`. Defaults to 1.0.

    Raises:
        ValueError: ``temperature`` is not positive.
    """

    def __init__(self, in_channels: int, channels: int, maps: bool = False, separate: bool = False,
                 init: float = 2.0, temperature: float = 1.0) -> None:
        super().__init__()
        if temperature <= 0:
            raise ValueError(f'expected a positive mask `temperature`, found {temperature}')
        self.channels, self.temperature = channels, temperature
        self.maps, self.separate = maps, separate
        #: Whether the mask is 1 everywhere, to see what it does.
        self.held_open = False
        rows = channels * (2 if separate else 1)
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(rows, in_channels), std=.02))
        self.bias = nn.Parameter(torch.full((rows, ), float(init)))
        self._seed: int | None = None

    def resample(self, generator: torch.Generator | None = None) -> None:
        """Draw the seed of one training step's noise; the forward draws it once it has a shape."""
        self._seed = int(torch.randint(2**62, (), generator=generator))

    def noise_like(self, theta: Tensor) -> Tensor:
        """Logistic noise of the step, shape ``theta.shape[1:]``, for every image of the batch."""
        generator = torch.Generator().manual_seed(self._seed)
        return logistic_noise(theta.shape[1:], generator).to(theta)

    def forward(self, x: Tensor) -> Tensor:
        r"""The linear layer's output :math:`\theta`.

        Args:
            x (Tensor): (B, N, C), or (B, C, H, W) with ``maps``.

        Returns:
            Tensor: (B, N, R, D), or (B, R, D, H, W) with ``maps``; R is 1, or 2 with
            ``separate``, so that it broadcasts to queries and keys.
        """
        theta = F.conv2d(x, self.weight[..., None, None], self.bias) if self.maps else \
            F.linear(x, self.weight, self.bias)
        return theta.unflatten(1 if self.maps else -1, (-1, self.channels))

    def binarize(self, theta: Tensor) -> Tensor:
        """M of zeros and ones with the step's noise in training, and the sigmoid's gradient.

        Args:
            theta (Tensor): Output of :meth:`forward`, in any shape that begins with the batch.
        """
        if self.held_open:
            return torch.ones_like(theta)
        if self.training and self._seed is not None:
            theta = theta + self.noise_like(theta)
        mask = (theta > 0).to(theta.dtype)  # sigmoid(theta / tau) > 0.5 at every tau
        if torch.is_grad_enabled() and theta.requires_grad:
            soft = torch.sigmoid(theta.float() / self.temperature).to(theta.dtype)
            mask = mask + (soft - soft.detach())  # adds 0, with the gradient of `soft`
        return mask

    def extra_repr(self) -> str:
        """Shown by ``print(model)``."""
        return (f'in_channels={self.weight.shape[1]}, channels={self.channels}, '
                f'separate={self.separate}')
