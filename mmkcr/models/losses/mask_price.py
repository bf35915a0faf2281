"""A price on what the masks of queries and keys leave open (an addition of ours to DCS)."""

from contextlib import ExitStack, contextmanager
from typing import Dict, Iterator, Tuple

import torch
from torch import Tensor, nn

from mmkcr.models.gates import QKMask
from mmkcr.registry import MODELS


@MODELS.register_module()
class MaskPrice(nn.Module):
    r"""Pulls channels of queries and keys shut that are shut nearly everywhere.

    A channel that is shut at every position of every image is a constant: a static fold takes
    its rows out of the projections of queries and keys and of the mask, and out of their product.
    Nothing is saved while any position is open. So the price is a group lasso on the
    probabilities :math:`\sigma(\theta)` that the noise leaves a position open,

    .. math:: \lambda \sum_l c_l \frac{1}{D_l} \sum_d
        \sqrt{\mathrm{mean}_{i}\, \sigma(\theta_{l,i,d})^2} \Big/ \sum_l c_l

    over the positions i of the batch, with :math:`c_l` the multiply-accumulates that the fold of
    all channels of mask l would save: 1 if all is open, 0 if all is shut.

    It is one of the ``regularizers`` of a :class:`~mmkcr.models.wrappers.RegularizedModel`. For
    every mask the log has the share of entries that are ``open`` without noise, and the shares of
    channels that are constantly open or constantly ``shut`` over the batch; with ``weight=0``
    this is all that it does.

    Args:
        weight (float): :math:`\lambda`. Defaults to 0: the log alone.

    Raises:
        ValueError: ``weight`` is negative.
    """

    def __init__(self, weight: float = 0.) -> None:
        super().__init__()
        if weight < 0:
            raise ValueError(f'expected a non-negative mask price `weight`, found {weight}')
        self.weight, self.active = weight, True
        self._masks: Tuple[Tuple[str, QKMask], ...] = ()
        self._seen: Dict[str, Tuple[Tensor, float]] = {}
        self._logged: Dict[str, Tensor] = {}

    def bind(self, architecture: nn.Module) -> None:
        """Find the masks.

        Args:
            architecture (nn.Module): The task model.

        Raises:
            ValueError: It has none, and there is a weight.
        """
        # in a tuple: the masks belong to the task model
        self._masks = tuple(
            (name.removeprefix('backbone.').removesuffix('.mask'), module)
            for name, module in architecture.named_modules() if isinstance(module, QKMask))
        if self.weight and not self._masks:
            raise ValueError('expected a backbone with masks on queries and keys for `MaskPrice`, '
                             f'found none in `{type(architecture).__name__}`')

    @contextmanager
    def watch(self) -> Iterator[None]:
        """See what the masks give in the forward within the block."""
        def record(name: str) -> None:
            def hook(mask: QKMask, args: Tuple[Tensor], theta: Tensor) -> None:
                self._seen[name] = (theta, foldable_macs(mask, args[0])[0])

            stack.callback(masks[name].register_forward_hook(hook).remove)

        self._seen = {}
        with ExitStack() as stack:
            masks = dict(self._masks)
            for name in masks:
                record(name)
            yield

    def forward(self, features: Tensor) -> Tensor:
        """The price of the forward that was watched.

        Args:
            features (Tensor): Those of the regularisers; not used.

        Returns:
            Tensor: A scalar.
        """
        masks, price, total = dict(self._masks), features.new_zeros(()), 0.
        self._logged = {}
        for name, (theta, macs) in self._seen.items():
            channels = channels_last(masks[name], theta).float()
            if self.weight:
                openness = torch.sigmoid(channels).square().mean(0)
                # the root of 0 has no gradient
                price = price + macs * openness.clamp(min=1e-12).sqrt().mean()
                total += macs
            opened = (channels.detach() > 0).float().mean(0)
            self._logged.update({f'{name}.open': opened.mean(),
                                 f'{name}.always': (opened == 1).float().mean(),
                                 f'{name}.never': (opened == 0).float().mean()})
        self._seen = {}
        return self.weight * price / total if self.weight else price

    def log_vars(self) -> Dict[str, Tensor]:
        """Openness by mask, of the last forward."""
        return self._logged


def channels_last(mask: QKMask, theta: Tensor) -> Tensor:
    """What a mask gives, a row a position of an image.

    Args:
        mask (QKMask): The mask.
        theta (Tensor): Of its forward.

    Returns:
        Tensor: Shape (positions of all images, R * D).
    """
    if mask.maps:  # (B, R, D, H, W)
        theta = theta.permute(0, 3, 4, 1, 2)
    return theta.flatten(-2).flatten(0, -2)


def foldable_macs(mask: QKMask, x: Tensor) -> Tuple[float, float]:
    """MACs of one sequence that a static fold of constant channels saves.

    Args:
        mask (QKMask): The mask.
        x (Tensor): Its input.

    Returns:
        tuple[float, float]: If all channels are shut: the rows of queries, keys and mask, and in
        softmax attention the product of queries and keys. If all are open: the mask's rows.
    """
    own = sum(p.numel() for p in (mask.weight, mask.down) if p is not None)
    positions, channels = (x[0, 0].numel(), x.shape[1]) if mask.maps else x.shape[-2:]
    product = 0 if mask.maps else positions**2 * mask.channels
    return positions * (2 * channels * mask.channels + own) + product, positions * own
