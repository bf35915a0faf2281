"""A price on what the masks of queries and keys leave open (an addition of ours to DCS)."""

from contextlib import ExitStack, contextmanager
from typing import Dict, Iterator, Tuple

import torch
from torch import Tensor, nn

from mmkcr.models.gates import QKMask
from mmkcr.registry import MODELS
from .processes import mean_over_processes


@MODELS.register_module()
class MaskPrice(nn.Module):
    r"""Pulls those query and key channels shut that are shut almost everywhere.

    A channel that is shut at every position of every image is constant. A static fold then removes
    its rows from the projections of queries and keys and from the mask, and removes it from the
    product of queries and keys. Nothing is saved while any position is open. So the price is a
    group lasso on :math:`\sigma(\theta)`, the probability that the noise leaves a position open:

    .. math:: \lambda \sum_l c_l \frac{1}{D_l} \sum_d
        \sqrt{\mathrm{mean}_{i}\, \sigma(\theta_{l,i,d})^2} \Big/ \sum_l c_l

    over the positions i of the batch of all processes. :math:`c_l` are the MACs that folding all
    channels of mask l would save. Apart from :math:`\lambda` the price is 1 if all is open and 0 if
    all is shut.

    It is one of the ``regularizers`` of a :class:`~mmkcr.models.wrappers.RegularizedModel`. For
    every mask it logs the share of entries that are ``open`` without noise, and the shares of
    channels that are ``always`` or ``never`` open over the batch. With ``weight=0`` it does
    nothing else.

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
        """Find the masks of the task model.

        Args:
            architecture (nn.Module): The task model.

        Raises:
            ValueError: It has no masks, although ``weight`` is not 0.
        """
        # a tuple, so that they are not sub-modules: the masks belong to the task model
        self._masks = tuple(
            (layer_name(name), module)
            for name, module in architecture.named_modules() if isinstance(module, QKMask))
        if self.weight and not self._masks:
            raise ValueError('expected a backbone with masks on queries and keys for `MaskPrice`, '
                             f'found none in `{type(architecture).__name__}`')

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Record the outputs of the masks in the forward within the block.

        Raises:
            ValueError: A mask runs within gradient checkpointing, where a price has no gradient.
        """
        learns = bool(self.weight) and torch.is_grad_enabled()

        def record(name: str) -> None:  # a function of its own, so that each hook has its name
            def hook(mask: QKMask, args: Tuple[Tensor], theta: Tensor) -> None:
                # re-entrant checkpointing runs its layers without gradients first
                if learns and not torch.is_grad_enabled():
                    raise ValueError('expected masks outside of gradient checkpointing '
                                     '(`with_cp=False`) for `MaskPrice`, whose price would have no '
                                     f'gradient, found `{name}` inside of it')
                # of all windows, whose number differs from layer to layer
                self._seen[name] = (theta, foldable_macs(mask, args[0])[0] * len(args[0]))

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
            features (Tensor): The regularisers' features; only their device and dtype are used.

        Returns:
            Tensor: A scalar.
        """
        masks, price, total = dict(self._masks), features.new_zeros(()), 0.
        self._logged = {}
        for name, (theta, macs) in self._seen.items():
            channels = channels_last(masks[name], theta).float()
            if self.weight:
                # sums and their number, as the root is of a mean over all processes
                squares = torch.sigmoid(channels).square().sum(0)
                squares, rows = mean_over_processes(
                    torch.cat([squares, squares.new_tensor([len(channels)])])).split(
                        [len(squares), 1])
                # clamped: the gradient of the root at 0 is infinite
                price = price + macs * (squares / rows).clamp(min=1e-12).sqrt().mean()
                total += macs
            opened = (channels.detach() > 0).float().mean(0)  # share of positions, by channel
            self._logged.update({f'{name}.open': opened.mean(),
                                 f'{name}.always': (opened == 1).float().mean(),
                                 f'{name}.never': (opened == 0).float().mean()})
        self._seen = {}
        return self.weight * price / total if self.weight else price

    def log_vars(self) -> Dict[str, Tensor]:
        """Openness by mask, of the last forward."""
        return self._logged


def layer_name(path: str) -> str:
    """The attention layer of a mask's module path, from the backbone on."""
    return path.rpartition('backbone.')[2].removesuffix('.mask')


def channels_last(mask: QKMask, theta: Tensor) -> Tensor:
    """A mask's output as a matrix, with one row per position of an image.

    Args:
        mask (QKMask): The mask.
        theta (Tensor): Output of its forward.

    Returns:
        Tensor: Shape (positions of all images, R * D).
    """
    if mask.maps:  # (B, R, D, H, W)
        theta = theta.permute(0, 3, 4, 1, 2)
    return theta.flatten(-2).flatten(0, -2)


def foldable_macs(mask: QKMask, x: Tensor) -> Tuple[float, float]:
    """MACs per sequence that a static fold of constant channels saves.

    Args:
        mask (QKMask): The mask.
        x (Tensor): Its input.

    Returns:
        tuple[float, float]: First the MACs that are saved if all channels are shut: the rows of
        the mask; in softmax attention also those of queries and keys, and their product; in
        linear attention the products, because its further scales read all queries and keys.
        Second those that are saved if all channels are open: the mask's rows.
    """
    # per position: the weights of the mask's linear layer
    own = sum(p.numel() for p in (mask.weight, mask.down) if p is not None)
    positions, channels = (x[0, 0].numel(), x.shape[1]) if mask.maps else x.shape[-2:]
    # of one channel: its products, or its row of queries, that of keys, and its products
    rest = mask.linear_products if mask.maps else 2 * channels + positions
    return positions * (mask.channels * rest + own), positions * own
