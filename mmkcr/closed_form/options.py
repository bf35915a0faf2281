"""Options of a compression, and what its parts hand to each other."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmkcr.functional.moments import Moments
from mmkcr.models.sites.base import HostSite

#: Takes a model and a batch; returns outputs, tensors in nested tuples, lists or dicts.
Forward = Callable[[nn.Module, Any], Any]
#: Values of :attr:`CompressOptions.refit`.
REFITS = ('least-squares', 'mean', 'none')


class Pair(NamedTuple):
    """The same of the dense and of the slim network."""

    dense: Any
    slim: Any


@dataclasses.dataclass(frozen=True)
class CompressOptions:
    """Options of a compression.

    Args:
        divisor (int): Sizes of hidden layers, channels and channels of a head are multiples of it,
            or full. Where there are fewer than four multiples, a divisor above 8 is halved; else
            any size is allowed. Defaults to 8.
        min_share (float): Minimum share of its units that a site keeps. Defaults to 0.05.
        uniform (bool): Use the same share for every site instead of the best allocation. Defaults
            to False.
        rho (float): Relative ridge of orders and refits. Defaults to 1e-3.
        rows (int): Maximum number of an image's positions that enter the moments of a layer, see
            :class:`~mmkcr.closed_form.calibration.Rows`. Defaults to 256.
        per_unit (tuple[int, int]): Positions per input of a layer that are enough, for its order
            and for its refit. Defaults to (4, 12).
        least_images (int): Images that are used, if there are as many, even where fewer have enough
            positions: neighbours within an image are much alike. Defaults to 2048: a DINOv2-S whose
            refit saw 2048 crops of photographs, not 256, is closer to the dense one on others.
        backward_images (int): Images that are also run backward in any case, for the orders.
            Defaults to 128: a layer has fewer outputs than its inputs that are units, so fewer rows
            of gradients do.
        probe_images (int): Images on which the losses of some sizes are measured. With 0 losses
            come from moments alone, as if an image's positions were independent. Defaults to 64.
        logits (bool): Whether the model's output is class scores (B, C). Defaults to False.
        progress (bool): Show a progress bar. Defaults to True.
        refit (str): How readers are refitted: ``'least-squares'``, or for controls ``'mean'`` (only
            the bias, from the means) or ``'none'``. Defaults to ``'least-squares'``.
        choose (Callable, optional): For controls: takes a site, the moments of its first reader
            and a generator, and returns an order of its units that replaces the closed form's.
            Defaults to None.
        seed (int): Seed of all random draws. Defaults to 0.
        memory (int, optional): Bytes that may be taken beyond the networks themselves. Images of a
            batch and sites that are profiled together are as many as fit; one image at least.
            Defaults to None: half of what is free on the model's device.
    """

    divisor: int = 8
    min_share: float = 0.05
    uniform: bool = False
    rho: float = 1e-3
    rows: int = 256
    per_unit: tuple[int, int] = (4, 12)
    least_images: int = 2048
    backward_images: int = 128
    probe_images: int = 64
    logits: bool = False
    progress: bool = True
    refit: str = 'least-squares'
    choose: Callable[[HostSite, Moments, torch.Generator], Tensor] | None = None
    seed: int = 0
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.refit not in REFITS:
            raise ValueError(f'expected `refit` of {list(REFITS)}, found {self.refit!r}')
        for name, least, most in (('rho', 0, 1e6), ('min_share', 0, 1), ('divisor', 1, 2**20),
                                  ('seed', 0, 2**63), ('memory', 0, 2**60)):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and
                                          least <= value <= most):  # NaN is refused too
                raise ValueError(f'expected `{name}` within [{least}, {most:g}], found {value!r}')


#: Shares of the memory: statistics of the sites that are profiled together with the changed weights
#: that are tried, and each kind of activations that a refit keeps of all images. The rest is for
#: the activations of a batch and for what is computed from statistics.
STATISTICS, ACTIVATIONS = 3 / 8, 1 / 8


@dataclasses.dataclass
class SiteProfile:
    """Result of the calibration of one site.

    Args:
        order (Tensor): Units, the most important first, int64 (total,).
        losses (Tensor): Loss of the network's outputs with the first k units, k = 0 … total, fp64;
            relative to the outputs, or in nats for class scores.
        rotated (dict[str, Tensor]): Weights, by path in the host, that the units refer to if these
            are not the network's own: see :mod:`mmkcr.closed_form.heads`. Defaults to none.
    """

    order: Tensor
    losses: Tensor
    rotated: dict[str, Tensor] = dataclasses.field(default_factory=dict)
