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

from mmkcr.functional.attention_refit import fold_heads, logit_bases, value_bases
from mmkcr.functional.kernel import tails
from mmkcr.functional.moments import Moments
from mmkcr.models.sites.heads import AttentionWidth, HeadChannels
from .calibration import WeightChange
from .options import CompressOptions, SiteProfile
from .units import Units


class HeadPart(NamedTuple):
    """Location of the weights that project to queries, keys or values of a layer."""

    #: Path of the projection.
    path: str
    #: Rows of its weight.
    rows: slice
    #: Path of the bias, or '' if there is none.
    bias: str
    #: Entries of the bias.
    entries: slice


def head_parts(site: AttentionWidth) -> list[HeadPart]:
    """The parts of queries, keys and values, in this order."""
    view, size = site.view, site.view.heads * site.view.width
    # hosts with a fused `qkv` may keep biases as parameters of their own (BEiT: q_bias, v_bias)
    parameters = {axis.name[0]: axis.name for axis in view.extra(site.owner) if axis.per == 1 and
                  isinstance(axis.value, nn.Parameter)}
    parts: list[HeadPart] = []
    # a projection holds `count` of q, k and v, each with all heads: `size` rows
    for path, count in zip(view.projections, view.fused):
        for part in range(count):
            rows, name = slice(part * size, (part + 1) * size), parameters.get('qkv'[len(parts)])
            bias = '' if site.module(path).bias is None else f'{path}.bias'
            parts.append(HeadPart(path, rows, bias, rows) if name is None else
                         HeadPart(path, rows, f'{site.path}.{name}', slice(0, size)))
    return parts


def take_weights(host: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Copy the weights of a rotation into a dense host, in place."""
    parameters = dict(host.named_parameters())
    with torch.no_grad():
        for path, value in state.items():
            parameters[path].copy_(value)


def width_order(site: HeadChannels) -> list[int]:
    """Units in the order of widths: the first channels of all heads, then the second ones, …"""
    return torch.arange(site.total).view(-1, site.view.width).T.flatten().tolist()


class NarrowHeads(Units):
    """Heads that may become narrower, in their new bases: H heads of d channels."""

    def __init__(self, site: AttentionWidth, settings: CompressOptions) -> None:
        super().__init__(site, settings)
        #: Weights and biases that were mixed, by their path in the host.
        self.rotated: dict[str, Tensor] = {}

    def projections(self) -> dict[str, nn.Module]:
        """The layers of queries, keys, values and the output, by path."""
        paths = (*(part.path for part in head_parts(self.site)), self.site.view.output)
        return {path: self.site.module(path) for path in paths}

    def profile(self) -> SiteProfile:
        """Rotate the layer, and the moments of its output projection; losses of the new units.

        Losses are in the unit of the output's errors.
        """
        moments = {path: self.moments[path] for path in self.projections()}
        self.check_reached(*moments.values())
        order, errors, values = self.rotate({path: entry.inputs for path, entry in moments.items()})
        output = self.moments[self.site.view.output]
        output.inputs = output.inputs.mixed(values)
        return SiteProfile(order, self.loss_of_all() * errors,
                           {path: value.clone() for path, value in self.rotated.items()})

    def rotate(self, moments: Mapping[str, Moments]) -> tuple[Tensor, Tensor, Tensor]:
        """Change the layer's weights to the new bases.

        Args:
            moments (Mapping[str, Moments]): Of the inputs of the :meth:`projections`, by path.

        Returns:
            tuple: The units, the best first; the share of the energy that is lost with the first k
            units, mean of the logits' and of the outputs' share, k = 0 … total, fp64; the mixing of
            the values, block-diagonal over the heads, (H * d, H * d), fp64.
        """
        site, (query, key, _) = self.site, head_parts(self.site)
        # keys are centred, as the softmax does not see what is the same for all keys; queries not
        *bases, logits = logit_bases(self._moment_of(query, moments, centred=False),
                                     self._moment_of(key, moments, centred=True),
                                     self.settings.rho)
        for part, basis in zip((query, key), bases):
            self._fold(part, basis)
        values, lost = self._rotate_values(moments)
        errors = lost_share(tails(logits.square())) + lost_share(lost)
        # exact where all heads have the same width, linear in between
        widths = np.arange(site.view.width + 1) * site.view.heads
        errors = np.interp(np.arange(site.total + 1), widths, errors.cpu().numpy() / 2)
        return torch.tensor(width_order(site)), torch.from_numpy(errors), values

    def _rotate_values(self, moments: Mapping[str, Moments],
                       places: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mix the values of every head, and have the output projection undo it.

        ``places`` are the channel of a head that the best mixture gets, then that of the second
        best, and so on, (d,), by default ascending.

        Returns:
            tuple[Tensor, Tensor]: The mixing, see :meth:`rotate`, and the output energy that is
            lost with the r best mixtures, (H, d + 1), fp64.
        """
        heads, path = self.site.view.heads, self.site.view.output
        weight = self.site.module(path).weight.detach()
        columns = weight.double().unflatten(1, (heads, -1)).transpose(0, 1)  # (H, m, d)
        value, back, values = value_bases(columns, _own(moments[path].covariance, heads),
                                          self.settings.rho)
        if places is not None:
            # inverse permutation: the mixture of each channel
            order = places.argsort().to(value.device)
            value, back = value[:, order], back[..., order]
        self._fold(head_parts(self.site)[2], value)
        weight.copy_(back.transpose(0, 1).flatten(1))  # (H, m, d) -> (m, H d)
        self.rotated[f'{path}.weight'] = weight
        return torch.block_diag(*value), tails(values.square())

    def _fold(self, part: HeadPart, mixing: Tensor) -> None:
        """Mix the channels of queries, keys or values, see :func:`fold_heads`."""
        for path, places in ((f'{part.path}.weight', part.rows), (part.bias, part.entries)):
            if path:
                value = self.rotated[path] = self.site.host.get_parameter(path).detach()
                value[places] = fold_heads(value[places], mixing)

    def _moment_of(self, part: HeadPart, moments: Mapping[str, Moments], centred: bool) -> Tensor:
        """Moment (H, d, d) of queries or keys, from the moments of the projection's inputs."""
        site, inputs = self.site, moments[part.path]
        weight = site.module(part.path).weight.detach()[part.rows].to(inputs.covariance)
        # cov(W x + b) = W C W^T; a bias moves only the mean
        moment = weight @ inputs.covariance @ weight.T
        if not centred:
            mean = weight @ inputs.mean
            if part.bias:
                mean = mean + site.host.get_parameter(part.bias).detach()[part.entries].to(mean)
            moment = moment + torch.outer(mean, mean)
        return _own(moment, site.view.heads)

    def changes(self, order: Tensor) -> list[WeightChange]:
        """Changes of the output projection, and of the keys."""
        return [*super().changes(order), self._narrower_keys(order)]

    def _narrower_keys(self, order: Tensor) -> WeightChange:
        """Keys without some units: the logits are those without these channels of both.

        The bias goes, too. The softmax does not see it, nor any mean, but behind a rotation.
        """
        part = head_parts(self.site)[1]
        layer = self.site.module(part.path)
        keys = layer.weight.detach()[part.rows]  # of a projection that may be fused
        bias = self.site.host.get_parameter(part.bias).detach()[part.entries] if part.bias else \
            keys.new_zeros(len(keys))
        keys = torch.cat([keys, bias[:, None]], 1)
        deltas = keys.new_zeros(len(self.probed()), *keys.shape)
        for delta, count in zip(deltas, self.probed()):
            lost = self._channels(order[count:].cpu())
            delta[lost] = -keys[lost]
        return WeightChange(layer, keys.new_zeros(keys.shape[1] - 1), deltas, part.rows)

    def _channels(self, units: Tensor) -> Tensor:
        """Channels of queries and keys that are some units."""
        return units


def lost_share(lost: Tensor) -> Tensor:
    """Share of all heads' energy that is lost, (n + 1,), from that of each, (H, n + 1)."""
    return lost.sum(0) / lost[:, 0].sum().clamp(min=1e-30)


def _own(matrix: Tensor, heads: int) -> Tensor:
    """The diagonal blocks (H, d, d): every head with itself."""
    blocks = matrix.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))  # (H, d, H, d)
    # diagonal() appends the heads: (d, d, H)
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
