"""Input-dependent masks on queries and keys of DCS-Transformer, section 3.1; what they select."""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmkcr.core.gate import NoisyGate, logistic_noise
from mmkcr.core.products import AddedLayer
from mmkcr.models.sites.qk_mask import QKMaskSite
from mmkcr.models.tasks import unwrap
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
        r"""The linear layer's output :math:`\theta` for x (B, N, C), or (B, C, H, W) with ``maps``.

        Its shape is (B, N, R, D), or (B, R, D, H, W) with ``maps``; R is 1, or 2 with ``separate``,
        so that it broadcasts to queries and keys.
        """
        theta = F.conv2d(x, self.weight[..., None, None], self.bias) if self.maps else \
            F.linear(x, self.weight, self.bias)
        return theta.unflatten(1 if self.maps else -1, (-1, self.channels))

    def binarize(self, theta: Tensor) -> Tensor:
        """M of zeros and ones with the step's noise in training, and the sigmoid's gradient.

        Theta is an output of :meth:`forward`, in any shape that begins with the batch.
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


def find_masks(model: nn.Module) -> Mapping[str, QKMask]:
    """The masks of a model, possibly wrapped, by module path; a model without masks is refused."""
    masks = QKMaskSite.masks(unwrap(model))
    if not masks:
        raise ValueError('expected a model with masks on queries and keys, found '
                         f'`{type(unwrap(model)).__name__}` without')
    return masks


@contextmanager
def masks_held_open(model: nn.Module) -> Iterator[None]:
    """Within the block all masks are 1, as a control."""
    with ExitStack() as stack:
        for mask in find_masks(model).values():
            stack.callback(setattr, mask, 'held_open', mask.held_open)
            mask.held_open = True
        yield


class MaskWatch(ExitStack):
    """Counts what masks select in the forward passes of a block, for :meth:`table` and its means.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.masks = find_masks(model)
        self._counts: dict[QKMask, Tensor] = {}  # open positions by channel; all positions

    def __enter__(self) -> 'MaskWatch':
        for mask in self.masks.values():
            self.enter_context(mask.register_forward_hook(self._count))
        return self

    def _count(self, mask: QKMask, args: tuple, theta: Tensor) -> None:
        if mask.maps:  # (B, R, D, H, W)
            theta = theta.permute(0, 3, 4, 1, 2)
        opened = theta.detach().flatten(-2).flatten(0, -2) > 0  # (all positions, R * D)
        self._counts[mask] = self._counts.get(mask, 0) + F.pad(opened, (0, 1), value=True).sum(0)

    def table(self) -> dict[str, dict[str, float]]:
        """Shares of each mask that was called, over all processes, by its layer in the backbone.

        ``open`` is the share of entries, over positions, images and channels, that are 1.
        ``always`` is the share of channels that are 1 for every position of every image, and
        ``never`` the share of channels that are always 0. All are in percent, without noise.
        """
        shares = {}
        for name, mask in self.masks.items():
            if mask not in self._counts:
                continue
            counts = self._counts[mask].double()
            all_reduce(counts)
            openness = counts[:-1] / counts[-1]  # share of positions that are open, by channel
            layer = name.rpartition('backbone.')[2].removesuffix('.mask')
            shares[layer] = {key: 100 * float(share.double().mean()) for key, share in dict(
                open=openness, always=openness == 1, never=openness == 0).items()}
        return shares

    def means(self) -> Mapping[str, float]:
        """Means of the columns of :meth:`table` over the masks."""
        rows = list(self.table().values())
        return {key: statistics.fmean(row[key] for row in rows)
                for key in ('open', 'always', 'never')}
