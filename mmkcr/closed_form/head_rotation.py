"""Bases of attention heads whose first channels matter most.

Within a head, queries may be mixed by any T and keys by its inverse transposed, and values by any
T that the output projection undoes: the network's outputs do not change. In the bases chosen here
the first r channels of a head are the best r: for the logits by the truncated SVD of
``Mq^(1/2) K^(1/2)``, for the output by that of ``W_h C_h^(1/2)``. So a narrower head is a slice.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mmkcr.functional.attention_refit import (
    fold_heads,
    logit_bases,
    singular_tails,
    value_bases,
)
from mmkcr.functional.moments import Moments
from mmkcr.models.sites.attention_width import AttentionWidth
from mmkcr.models.sites.heads import HeadChannels
from .calibration import WeightChange
from .options import SiteProfile
from .units import Units


class HeadPart(NamedTuple):
    """Location of the weights that project to queries, keys or values of a layer.

    Args:
        path (str): Path of the projection.
        rows (slice): Rows of its weight.
        bias (str): Path of the bias, or '' if there is none.
        entries (slice): Entries of the bias.
    """

    path: str
    rows: slice
    bias: str
    entries: slice


def head_parts(site: AttentionWidth) -> list[HeadPart]:
    """The parts of queries, keys and values, in this order."""
    view, size = site.view, site.view.heads * site.view.width
    # hosts with a fused `qkv` may keep biases as parameters of their own (BEiT: q_bias, v_bias)
    own = {axis.name[0]: axis.name for axis in view.extra(site.owner) if axis.per == 1 and
           isinstance(axis.value, nn.Parameter)} if view.extra is not None else {}
    parts: list[HeadPart] = []
    # a projection holds `count` of q, k and v, each with all heads: `size` rows
    for path, count in zip(view.projections, view.fused):
        for part in range(count):
            rows, name = slice(part * size, (part + 1) * size), own.get('qkv'[len(parts)])
            bias = '' if site.module(path).bias is None else f'{path}.bias'
            parts.append(HeadPart(path, rows, bias, rows) if name is None else
                         HeadPart(path, rows, f'{site.path}.{name}', slice(0, size)))
    return parts


class HeadRotation(NamedTuple):
    """New weights of a layer's projections, and the errors of narrower heads.

    Args:
        state (dict[str, Tensor]): Weights and biases, by their path in the host.
        order (Tensor): The units, the best first.
        errors (Tensor): Share of the energy that is lost with the first k units, mean of the
            logits' and of the outputs' share; k = 0 … total, fp64.
        values (Tensor): Mixing of the values, block-diagonal over the heads, (H * d, H * d), fp64.
    """

    state: dict[str, Tensor]
    order: Tensor
    errors: Tensor
    values: Tensor


def rotate_heads(site: HeadChannels, moments: Mapping[str, Moments],
                 rho: float = 1e-3) -> HeadRotation:
    """Compute the bases of one attention layer; its weights are not changed here.

    Args:
        site (HeadChannels): Site of a dense layer with H heads of d channels.
        moments (Mapping[str, Moments]): Of the inputs of
            :meth:`NarrowHeads.projections`, by path.
        rho (float): Relative ridge of the moments. Defaults to 1e-3.
    """
    heads, parts, state = site.view.heads, head_parts(site), {}
    # keys are centred, as the softmax does not see what is the same for all keys; queries are not
    queries, keys = (_second_moment(site, part, moments[part.path], heads, centred)
                     for part, centred in ((parts[0], False), (parts[1], True)))
    query, key, logits = logit_bases(queries, keys, rho)
    fold(site, state, parts[0], query)
    fold(site, state, parts[1], key)
    values, lost = rotate_values(site, state, moments[site.view.output], rho)
    errors = _share(singular_tails(logits)) + _share(lost)
    # exact where all heads have the same width, linear in between
    widths = np.arange(site.view.width + 1) * heads
    errors = np.interp(np.arange(site.total + 1), widths, errors.cpu().numpy() / 2)
    return HeadRotation(state, torch.tensor(width_order(site)), torch.from_numpy(errors), values)


def rotate_values(site: AttentionWidth, state: dict[str, Tensor], moments: Moments, rho: float,
                  places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Write to ``state`` mixed values of every head, and the output projection that undoes it.

    Args:
        site (AttentionWidth): Site of a dense layer.
        state (dict[str, Tensor]): Gets the new weights.
        moments (Moments): Of the output projection's inputs.
        rho (float): Relative ridge.
        places (Tensor, optional): Channel of a head that the best mixture gets, then that of the
            second best, and so on, (d,). Defaults to ascending channels.

    Returns:
        tuple[Tensor, Tensor]: :attr:`HeadRotation.values`, and the output energy that is lost with
        the r best mixtures, (H, d + 1), fp64.
    """
    heads, output = site.view.heads, site.module(site.view.output)
    columns = output.weight.detach().double().unflatten(1, (heads, -1)).transpose(0, 1)  # (H, m, d)
    value, back, values = value_bases(columns, _own(moments.covariance, heads), rho)
    if places is not None:
        # inverse permutation: the mixture of each channel
        order = places.argsort().to(value.device)
        value, back = value[:, order], back[..., order]
    fold(site, state, head_parts(site)[2], value)
    # (H, m, d) -> (m, H d)
    state[f'{site.view.output}.weight'] = back.transpose(0, 1).flatten(1).to(output.weight)
    return torch.block_diag(*value), singular_tails(values)


def fold(site: AttentionWidth, state: dict[str, Tensor], part: HeadPart, mixing: Tensor) -> None:
    """Mix the channels of queries, keys or values in ``state``, see :func:`fold_heads`."""
    # queries, keys and values of one fused projection are folded into one copy, one after the other
    def entry(path: str) -> Tensor:
        if path not in state:
            state[path] = site.host.get_parameter(path).detach().clone()
        return state[path]

    weight, bias = entry(f'{part.path}.weight'), entry(part.bias) if part.bias else None
    folded, shifted = fold_heads(weight[part.rows], None if bias is None else bias[part.entries],
                                 mixing)
    weight[part.rows] = folded
    if bias is not None:
        bias[part.entries] = shifted


def _share(lost: Tensor) -> Tensor:
    """Share of all heads' energy that is lost, (n + 1,), from (H, n + 1)."""
    return lost.sum(0) / lost[:, 0].sum().clamp(min=1e-30)


def take_weights(host: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the weights of a rotation into a dense host, in place."""
    parameters = dict(host.named_parameters())
    with torch.no_grad():
        for path, value in state.items():
            parameters[path].copy_(value)


def width_order(site: HeadChannels) -> list[int]:
    """Units in the order of widths: the first channels of all heads, then the second ones, …"""
    width = site.view.width
    return [head * width + channel for channel in range(width)
            for head in range(site.total // width)]


def _second_moment(site: HeadChannels, part: HeadPart, moments: Moments, heads: int,
                   centred: bool) -> Tensor:
    """Moment (H, d, d) of queries or keys, from the moments of the projection's inputs."""
    weight = site.module(part.path).weight.detach()[part.rows].to(moments.covariance)
    # cov(W x + b) = W C W^T; a bias moves only the mean
    moment = weight @ moments.covariance @ weight.T
    if not centred:
        mean = weight @ moments.mean
        if part.bias:
            mean = mean + site.host.get_parameter(part.bias).detach()[part.entries].to(mean)
        moment = moment + torch.outer(mean, mean)
    return _own(moment, heads)


def _own(matrix: Tensor, heads: int) -> Tensor:
    """The diagonal blocks (H, d, d): every head with itself."""
    blocks = matrix.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))  # (H, d, H, d)
    # diagonal() appends the heads: (d, d, H)
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


class NarrowHeads(Units):
    """Heads that may become narrower, in their new bases."""

    def projections(self) -> dict[str, nn.Module]:
        """The layers of queries, keys, values and the output, by path."""
        paths = (*(part.path for part in head_parts(self.site)), self.site.view.output)
        return {path: self.site.module(path) for path in paths}

    def _rotated(self, moments: Mapping[str, Moments]) -> HeadRotation:
        return rotate_heads(self.site, moments, self.settings.rho)

    def profile(self) -> SiteProfile:
        """Rotate the layer, and the moments of its output projection; losses of the new units.

        Losses are in the unit of the output's errors.
        """
        found = {path: self.moments[path] for path in self.projections()}
        self.check_reached(*found.values())
        rotation = self._rotated({path: entry.inputs for path, entry in found.items()})
        take_weights(self.site.host, rotation.state)
        output = self.moments[self.site.view.output]
        output.inputs = output.inputs.mixed(rotation.values)
        return SiteProfile(rotation.order, self.loss_of_all() * rotation.errors, rotation.state)

    def changes(self, order: Tensor) -> list[WeightChange]:
        """Changes of the output projection, and of the keys."""
        return [*super().changes(order), self._narrower_keys(order)]

    def _narrower_keys(self, order: Tensor) -> WeightChange:
        """Keys without some channels: the logits are those without these channels of both.

        The softmax does not see what is the same for all keys, so the mean does not matter.
        """
        part = head_parts(self.site)[1]
        layer = self.site.module(part.path)
        keys = layer.weight.detach()[part.rows]  # of a projection that may be fused
        deltas = keys.new_zeros(len(self.probed()), *keys.shape)
        for delta, count in zip(deltas, self.probed()):
            lost = order[count:].to(delta.device)
            delta[lost] = -keys[lost]
        return WeightChange(layer, deltas.new_zeros(deltas.shape[-1]), deltas, outputs=part.rows)
