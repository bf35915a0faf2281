"""Profiles of heads that may become narrower.

Within a head, queries may be mixed by any T and keys by its inverse transposed, and values by any T
that the output projection undoes: the network's outputs do not change. In the bases chosen here the
first r channels of a head are the best r: for the logits by the truncated SVD of
``Mq^(1/2) K^(1/2)``, for the output by the SVD of ``W_h C_h^(1/2)``. So a narrower head is a slice.

With rotary positions only a scaled rotation of each pair commutes with the position's rotation, so
pairs are selected, by the moments of the rotated queries and keys. Positions do not touch values:
they are mixed as in other heads, and the best mixtures take the places of the best pairs.
"""

import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mmkcr.functional.attention_refit import (
    fold_heads,
    logit_bases,
    rotary_order,
    rotary_pairs,
    value_bases,
)
from mmkcr.functional.kernel import tails
from mmkcr.functional.moments import Moments
from mmkcr.models.sites.heads import AttentionWidth, HeadChannels
from .calibration import WeightChange
from .options import CompressOptions, SiteProfile
from .readers import Rows, pick
from .units import Units


class HeadPart(NamedTuple):
    """Queries, keys or values of an attention layer, as views of its parameters."""

    path: str  # of the projection
    rows: slice  # of its weight
    weight: Tensor
    bias_path: str  # of the parameter that holds the bias
    bias: Tensor | None


def head_parts(site: AttentionWidth) -> list[HeadPart]:
    """The parts of queries, keys and values, in this order."""
    view, size = site.view, site.view.heads * site.view.width
    # hosts with a fused `qkv` may keep biases as parameters of their own (BEiT: q_bias, v_bias)
    parameters = {axis.name[0]: axis.name for axis in view.extra(site.owner) if axis.per == 1 and
                  isinstance(axis.value, nn.Parameter)}
    parts: list[HeadPart] = []
    # a projection holds `count` of q, k and v, each with all heads: `size` rows
    for path, count in zip(view.projections, view.fused):
        layer = site.module(path)
        for part in range(count):
            rows, name = slice(part * size, (part + 1) * size), parameters.get('qkv'[len(parts)])
            if name is not None:
                bias_path = f'{site.path}.{name}'
                bias = site.host.get_parameter(bias_path).detach()
            else:
                bias_path = f'{path}.bias'
                bias = None if layer.bias is None else layer.bias.detach()[rows]
            parts.append(HeadPart(path, rows, layer.weight.detach()[rows], bias_path, bias))
    return parts


def take_weights(host: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the weights of a rotation, by their paths, into a dense host, in place."""
    with torch.no_grad():
        for path, value in state.items():
            host.get_parameter(path).copy_(value)


def width_order(site: HeadChannels) -> list[int]:
    """Units in the order of widths: the first channels of all heads, then the second ones, …"""
    return torch.arange(site.total).view(-1, site.view.width).T.flatten().tolist()


class NarrowHeads(Units):
    """Heads that may become narrower, in their new bases: H heads of d channels."""

    def __init__(self, site: AttentionWidth, settings: CompressOptions) -> None:
        super().__init__(site, settings)
        #: Paths of the weights and biases that were mixed.
        self.rotated: list[str] = []

    def layers(self) -> dict[str, bool]:
        """The layers of queries, keys, values and the output."""
        return {**{part.path: False for part in head_parts(self.site)}, **super().layers()}

    def profile(self) -> SiteProfile:
        """Rotate the layer and the moments of its output projection, and profile the new units.

        The dense network's weights are changed, in place, without a change of its function. The
        profile holds the new weights, for the slim network.
        """
        order, errors, values = self.rotate()
        output = self.moments[self.site.view.output]
        output.inputs = output.inputs.mixed(values)
        covariances, grams, _ = self.reader_statistics()
        # the loss without any of the units: tr(C G)
        loss = sum(float((c * g.to(c)).sum()) for c, g in zip(covariances, grams))
        return SiteProfile(order, loss * errors,
                           {path: self.site.host.get_parameter(path).detach().clone()
                            for path in self.rotated})

    def rotate(self) -> tuple[Tensor, Tensor, Tensor]:
        """Change the layer's weights to the new bases, in place.

        Returns:
            tuple[Tensor, Tensor, Tensor]: The units, the best first; the share of the energy that
            is lost with the first k of them, mean of the logits' and of the outputs' share,
            k = 0 … total, fp64; the mixing of the values, block-diagonal over the heads,
            (H * d, H * d), fp64.
        """
        site, (query, key, _) = self.site, head_parts(self.site)
        # keys are centred, as the softmax does not see what all keys share; queries not
        *bases, logits = logit_bases(self._moment_of(query, centred=False),
                                     self._moment_of(key, centred=True), self.settings.order_rho)
        for part, basis in zip((query, key), bases):
            self._fold(part, basis)
        values, lost = self._rotate_values()
        errors = _energy_share(tails(logits.square())) + _energy_share(lost)
        # exact where all heads have the same width, linear in between
        widths = np.arange(site.view.width + 1) * site.view.heads
        errors = np.interp(np.arange(site.total + 1), widths, errors.cpu().numpy() / 2)
        return torch.tensor(width_order(site)), torch.from_numpy(errors), values

    def _rotate_values(self, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mix the values of every head, and have the output projection undo it.

        Args:
            places (Tensor, optional): Channels of a head for the mixtures, the best mixture first,
                (d,). Defaults to None: ascending.

        Returns:
            tuple[Tensor, Tensor]: The mixing, see :meth:`rotate`, and the output energy that is
            lost with the r best mixtures, (H, d + 1), fp64.
        """
        heads, path = self.site.view.heads, self.site.view.output
        weight = self.site.module(path).weight.detach()
        columns = weight.double().unflatten(1, (heads, -1)).transpose(0, 1)  # (H, m, d)
        value, back, values = value_bases(
            columns, _within_heads(self.moments[path].inputs.covariance, heads),
            self.settings.order_rho)
        if places is not None:
            # inverse permutation: the mixture of each channel
            order = places.argsort().to(value.device)
            value, back = value[:, order], back[..., order]
        self._fold(head_parts(self.site)[2], value)
        weight.copy_(back.transpose(0, 1).flatten(1))  # (H, m, d) -> (m, H d)
        self.rotated.append(f'{path}.weight')
        return torch.block_diag(*value), tails(values.square())

    def _fold(self, part: HeadPart, mixing: Tensor) -> None:
        """Mix the channels of queries, keys or values, see :func:`fold_heads`."""
        for path, value in ((f'{part.path}.weight', part.weight), (part.bias_path, part.bias)):
            if value is not None:
                value.copy_(fold_heads(value, mixing))
                self.rotated.append(path)

    def _moment_of(self, part: HeadPart, centred: bool) -> Tensor:
        """Moment (H, d, d) of queries or keys, from the moments of the projection's inputs."""
        inputs = self.moments[part.path].inputs
        weight = part.weight.to(inputs.covariance)
        # cov(W x + b) = W C W^T; a bias moves only the mean
        moment = weight @ inputs.covariance @ weight.T
        if not centred:
            mean = weight @ inputs.mean + (0 if part.bias is None else part.bias)
            moment = moment + torch.outer(mean, mean)
        return _within_heads(moment, self.site.view.heads)

    def changes(self, order: Tensor) -> list[WeightChange]:
        """Changes of the output projection, and of the keys.

        The logits without some channels of queries and keys equal the logits without these channels
        of keys alone. Their bias goes, too: the softmax sees it, like any mean, only behind a
        rotation.
        """
        part = head_parts(self.site)[1]
        bias = part.weight.new_zeros(len(part.weight)) if part.bias is None else part.bias
        keys = torch.cat([part.weight, bias[:, None]], 1)
        deltas = keys.new_zeros(len(self.probe_sizes()), *keys.shape)
        for delta, count in zip(deltas, self.probe_sizes()):
            lost = self._channels(order[count:].cpu())
            delta[lost] = -keys[lost]
        mean = keys.new_zeros(keys.shape[1] - 1)
        return [*super().changes(order),
                WeightChange(self.site.module(part.path), mean, deltas, part.rows)]

    def _channels(self, units: Tensor) -> Tensor:
        """Places of the channels of queries and keys that belong to some units."""
        return units


class RotaryHeads(NarrowHeads):
    """Heads with rotary positions: pairs of their channels are selected."""

    #: Moments of queries and of keys after their rotation, as they enter the logits.
    turned: tuple[Moments, Moments]

    def observers(self, rows: Rows) -> list[tuple[nn.Module, Callable]]:
        """Observe the rotated queries and keys, too."""
        site, view = self.site, self.site.view
        self.turned = tuple(Moments(
            view.width, batch=(view.heads, ), device=next(site.owner.parameters()).device,
            name=f'{site.name} {part}') for part in ('queries', 'keys'))
        turns = itertools.cycle(self.turned)  # the host rotates queries, then keys

        def take(images: range, _: nn.Module, __: tuple, out: Tensor) -> None:
            """Add the rotated queries or keys ``out`` of some images to their moments."""
            tokens = out.detach().transpose(0, 1).flatten(1, 2)  # (H, B N, d)
            chosen = pick(tokens.shape[1], self.settings.rows, images)
            next(turns).add(tokens if chosen is None else tokens[:, chosen.to(tokens.device)])

        return [*super().observers(rows), (site.owner.rotary, take)]

    def share_moments(self) -> None:
        """Take in what other processes observed, of turned queries and keys, too."""
        super().share_moments()
        for moments in self.turned:
            moments.share()

    def rotate(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mix the values, and choose pairs; weights of queries and keys stay as they are."""
        view, (queries, keys) = self.site.view, self.turned
        ranked = rotary_order(queries.second_moment, keys.covariance, view.rotary,
                              self.settings.order_rho)
        order = ranked.order.cpu()
        values, lost = self._rotate_values(
            rotary_pairs(view.width, view.rotary)[order].flatten())  # best pair first
        # a pair is two channels: every second of the d + 1 energies of the values
        errors = _energy_share(ranked.errors[None]) + _energy_share(lost[:, ::2])
        return order, errors.cpu() / 2, values

    def _channels(self, units: Tensor) -> Tensor:
        view = self.site.view
        pairs = rotary_pairs(view.width, view.rotary)[units].flatten()
        return (torch.arange(view.heads)[:, None] * view.width + pairs).flatten()


def _energy_share(lost: Tensor) -> Tensor:
    """Share of all heads' energy that is lost, (n + 1,), from each head's energy, (H, n + 1)."""
    return lost.sum(0) / lost[:, 0].sum().clamp(min=1e-30)


def _within_heads(matrix: Tensor, heads: int) -> Tensor:
    """The diagonal blocks (H, d, d): every head with itself."""
    blocks = matrix.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))  # (H, d, H, d)
    # diagonal() appends the heads: (d, d, H)
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
