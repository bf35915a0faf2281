"""Depthwise convolutions instead of attention heads, fitted in closed form.

The taps and the bias of a channel are the least-squares fit of attention's output to the patches'
values, a system of ten equations. Class and register tokens, where there are any, take one scalar
per head times the mean patch, also by least squares. The output projection is then refitted like
any other reader.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mmkcr.functional.attention_refit import add_maps, fit_taps, tap_moments
from mmkcr.functional.moments import Moments
from mmkcr.functional.pivots import UnitOrder
from mmkcr.functional.refit import refit_mixed
from mmkcr.models.layers.head_operators import DepthwiseHeads
from mmkcr.models.sites.head_operator import HeadOperatorSite
from .calibration import WeightChange
from .options import SiteProfile
from .readers import input_rows, pick, weight_matrix
from .replay import caught
from .units import PROBES, Units, kept_units, sensitivity

#: Operators with a closed form.
FITTED = ('dwconv', )
#: Weights of a kernel.
TAPS = 9
#: Positions that a kernel is fitted on; images beyond are left out.
POSITIONS = 8192


class KernelMoments:
    """Streaming moments of the values of some heads and of attention's output for them.

    Args:
        operator (DepthwiseHeads): The operator to fit.
        name (str): For messages.
    """

    def __init__(self, operator: DepthwiseHeads, name: str) -> None:
        self.operator = operator
        device = operator.conv.weight.device
        self.patches = tap_moments(operator.conv.out_channels, device=device, name=name)
        extra = 0 if operator.exchange is None else len(operator.exchange.from_patches)
        #: sums over images and channels of <output - value, mean patch> and of |mean patch|^2, for
        #: every extra token and head
        self.sums = torch.zeros(2, extra, operator.heads, dtype=torch.float64, device=device)

    def add(self, values: Tensor, targets: Tensor, hw: tuple[int, int]) -> None:
        """Add values and attention's outputs (B, N, C), extra tokens first, of maps of ``hw``."""
        left = math.ceil((POSITIONS - self.patches.count) / (hw[0] * hw[1]))
        if left <= 0:
            return
        values, targets = values[:left], targets[:left]
        extra, heads = self.sums.shape[1:]
        if extra:
            # an extra token becomes value + a * mean, so a = sum(missing mean) / sum(mean^2)
            mean = values[:, extra:].double().mean(1, keepdim=True)
            missing = (targets[:, :extra] - values[:, :extra]).double()
            self.sums += torch.stack([part.unflatten(-1, (heads, -1)).sum((0, -1)) for part in (
                missing * mean, (mean * mean).expand_as(missing))])
        add_maps(self.patches, *(part[:, extra:].transpose(1, 2).unflatten(2, hw)
                                 for part in (values, targets)))

    @torch.no_grad()
    def fit(self, rho: float = 1e-3) -> None:
        """Set the operator's parameters; the fit is never worse than the parameters before.

        Args:
            rho (float): Relative ridge towards the current taps. Defaults to 1e-3.
        """
        conv, exchange = self.operator.conv, self.operator.exchange
        taps, bias = fit_taps(self.patches, conv.weight.squeeze(1), rho)
        conv.weight.copy_(taps.unsqueeze(1))
        conv.bias.copy_(bias)
        if exchange is not None:
            products, squares = self.sums
            exchange.from_patches.copy_(products / squares.clamp(min=1e-30))


class HeadKernels:
    """The heads of a dense attention layer, and the convolutions that approximate them best.

    Within its ``with`` block it observes the running layer: first it collects what the kernels
    are fitted to, and, once :meth:`fit` was called, the joint moments of the heads' outputs and
    the kernels' outputs.

    Args:
        site (HeadOperatorSite): Site of a dense layer.
        rows (int): Maximum number of an image's positions that moments take.
        rho (float): Relative ridge.
    """

    def __init__(self, site: HeadOperatorSite, rows: int, rho: float) -> None:
        self.site, self.rho, self._rows, self._images, self._handles = site, rho, rows, 0, []
        weight, extra = site.owner.proj.weight, site.grid.extra
        self.operator = DepthwiseHeads(site.total, site.view.width, extra).to(weight).eval()
        self.kernels = KernelMoments(self.operator, site.name)
        self.joint = Moments(2 * weight.shape[1], device=weight.device, name=site.name)
        self._values = None

    def __enter__(self) -> 'HeadKernels':
        owner = self.site.owner
        self._handles = [owner.qkv.register_forward_hook(self._keep),
                         owner.proj.register_forward_hook(self._take)]
        return self

    def __exit__(self, *_: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep(self, _: nn.Module, args: tuple, out: Tensor) -> None:
        self._values = out.detach()[..., -out.shape[-1] // 3:]  # q, k, v side by side

    @torch.no_grad()
    def _take(self, layer: nn.Module, args: tuple, out: Tensor) -> None:
        if self.kernels is None:
            rows = self.rows_of(layer, args[0].detach())
            images = range(self._images, self._images + len(out))
            self._images = images.stop
            chosen = pick(len(rows), self._rows, images)
            self.joint.add(rows if chosen is None else rows[chosen.to(rows.device)])
        else:
            self.kernels.add(self._values, args[0].detach(), self.site.grid.hw)

    def fit(self) -> None:
        """Fit the kernels of all heads."""
        self.kernels.fit(self.rho)
        self.kernels = None

    @torch.no_grad()
    def rows_of(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Heads' outputs x beside the kernels' outputs, as rows (n, 2 C)."""
        replaced = self.operator.mix(self._values, self.site.grid.hw)
        return input_rows(layer, torch.cat([x, replaced], -1))

    def order(self, cost: Tensor) -> tuple[Tensor, Tensor]:
        """Order heads greedily by the loss of replacing their attention.

        Args:
            cost (Tensor): Cost of an error of the layer's outputs, (m, m).

        Returns:
            tuple[Tensor, Tensor]: Heads, the first to be replaced last, int64 (H,), and the loss
            with the first k kept, k = 0 … H, fp64, before the output projection is refitted.
        """
        heads, width = self.site.total, self.site.view.width
        channels, covariance = heads * width, self.joint.covariance
        # e = attention - kernel = [I, -I] (a, r), so cov(e) = [I, -I] C [I, -I]^T, (C, C)
        apart = torch.eye(channels).to(covariance)
        apart = torch.cat([apart, -apart], 1)
        weight = weight_matrix(self.site.owner.proj).to(covariance)
        # replacing the set R costs tr(F W_R cov(e)_RR W_R^T): the sum over R x R of this product
        errors = (apart @ covariance @ apart.T) * (weight.T @ cost.to(weight) @ weight)
        together = errors.view(heads, width, heads, width).sum((1, 3)).cpu()
        replaced: list[int] = []
        losses = [0.]
        # cost of one more head i: errors_ii + 2 sum_j errors_ij over the replaced heads j
        while len(replaced) < heads:
            costs = {head: float(together[head, head] + 2 * together[head, replaced].sum())
                     for head in range(heads) if head not in replaced}
            replaced.append(min(costs, key=costs.get))
            losses.append(max(losses[-1], losses[-1] + costs[replaced[-1]]))
        return torch.tensor(replaced[::-1]), torch.tensor(losses[::-1], dtype=torch.float64)

    def change(self, kept: Sequence[Tensor]) -> WeightChange:
        """Weight changes for kernels in all heads but the kept ones, the projection refitted.

        Args:
            kept (Sequence[Tensor]): Kept heads of every try.
        """
        layer, heads, deltas = self.site.owner.proj, self.site.total, []
        weight = weight_matrix(layer)
        # over (a, r): the dense projection reads attention's half and ignores the kernels' half
        dense = torch.cat([weight, torch.zeros_like(weight)], 1)
        for units in kept:
            source = torch.arange(heads)
            # the second half of the joint inputs, heads ... 2 heads - 1, holds the kernels' outputs
            source[~torch.isin(source, units.cpu())] += heads
            columns = (source[:, None] * self.site.view.width
                       + torch.arange(self.site.view.width)).flatten().to(weight.device)
            # T selects, for every head, its channels of one half: (C, 2 C)
            mixing = torch.zeros_like(dense[:1]).repeat(len(columns), 1)
            mixing[torch.arange(len(columns)), columns] = 1.
            new = refit_mixed(dense, None, self.joint.covariance, self.joint.mean, mixing, weight,
                              self.rho)[0]
            delta = -dense
            delta[:, columns] += new
            deltas.append(delta)
        return WeightChange(layer, self.joint.mean, torch.stack(deltas), self.rows_of)


class ReplacedHeads(Units):
    """Heads whose attention becomes a convolution: the output projection keeps all its inputs."""

    second_pass = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._kernels: HeadKernels | None = None

    def bytes(self) -> int:
        """Bytes of the statistics, those of the kernels included."""
        channels = self.site.owner.proj.weight.shape[1]
        return super().bytes() + 8 * ((2 * channels)**2 + channels * TAPS * (TAPS + 1))

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Observe values and heads, see :class:`HeadKernels`."""
        self._kernels = self._kernels or HeadKernels(self.site, self.settings.rows,
                                                     self.settings.rho)
        with self._kernels:
            yield

    def prepare(self) -> None:
        """Fit the kernels."""
        self._kernels.fit()

    def profile(self) -> SiteProfile:
        """Heads ordered by the error of their kernels, seen through the output projection."""
        moments = self.moments[self.site.view.output]
        self.check_reached(moments)
        units, losses = self._kernels.order(sensitivity(moments))
        return SiteProfile(UnitOrder(units, losses, ()), losses)

    def probed(self) -> list[int]:
        """The sizes at which the loss is measured: all heads may be replaced."""
        total = self.site.total
        return sorted({0, *(round(share * total) for share in PROBES)} - {total})

    def changes(self, order: UnitOrder, counts: Sequence[int]) -> list[WeightChange]:
        """Changes of the output projection, which reads kernels in place of heads."""
        return [self._kernels.change(kept_units(order, counts))]

    def refit(self, refits: Any, kept: Tensor) -> None:
        """Fit the kernels to the dense network's heads, on the slim network's values, first."""
        if self.settings.refit == 'least-squares':
            self._fit(refits.runs, kept)
        super().refit(refits, kept)

    def _fit(self, runs: Any, kept: Tensor) -> None:
        site, width = self.site, self.site.view.width
        replaced = [head for head in range(site.total) if head not in kept.tolist()]
        # (removed heads * width,) channels of the dense layer
        channels = torch.arange(site.total * width).view(site.total, -1)[replaced].flatten()
        moments = KernelMoments(site.owner.operator, site.name)
        for batch in range(len(runs.dense.batches)):
            if moments.patches.count >= POSITIONS:
                break
            calls = []  # [(dense proj: input, output), (slim qkv: input, output)]
            for run, name in zip(runs, ('proj', 'qkv')):
                layer = run.host.get_submodule(f'{site.path}.{name}')
                calls += caught(run, batch, {name: layer}, layer)[name]
            (attended, _), (_, qkv) = calls
            # q, k and v of the kept heads first, then the values of the replaced ones
            moments.add(qkv[..., 3 * len(kept) * width:],
                        attended[..., channels.to(attended.device)], site.grid.hw)
        moments.fit(self.settings.rho)
