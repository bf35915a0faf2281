"""Bases of attention heads whose first channels matter most (SPEC 9).

Within a head, queries and keys may be mixed by any T and its inverse transposed, and values by any
T that the output projection undoes: the network stays what it is. In the bases chosen here the
first r channels of a head are the best r: of the logits by the truncated SVD of
``Mq^(1/2) K^(1/2)``, of the output by that of ``W_h C_h^(1/2)``. So a narrower head is a slice.
"""

from typing import Dict, List, Mapping, NamedTuple, Tuple

import torch
from torch import Tensor, nn

from mmkcr.functional.attention_refit import (
    fold_heads,
    logit_bases,
    singular_tails,
    value_bases,
)
from mmkcr.functional.moments import Moments
from .sites.heads import HeadChannels


class HeadParts(NamedTuple):
    """Where queries, keys and values of a layer come from: path of the projection, rows of it."""

    queries: Tuple[str, slice]
    keys: Tuple[str, slice]
    values: Tuple[str, slice]


def head_parts(site: HeadChannels) -> HeadParts:
    """The rows of queries, keys and values; each in the order of the site's units.

    Raises:
        ValueError: A bias that is no part of a projection.
    """
    view, rows = site.view, site.total
    for axis in view.extra(site.owner) if view.extra is not None else ():
        if axis.per == 1 and axis.value is not None:
            raise ValueError(f"expected an attention layer whose biases are its projections' for "
                             f'narrower heads, found `{axis.name}` at `{site.path}`')
    return HeadParts(*((path, slice(part * rows, (part + 1) * rows))
                       for path, parts in zip(view.projections, view.fused)
                       for part in range(parts)))


class HeadRotation(NamedTuple):
    """New weights of a layer's projections, and what narrower heads lose.

    Args:
        state (dict[str, Tensor]): Weights and biases, by their path in the host.
        errors (Tensor): Share of the logits' and of the outputs' energy that heads of width r do
            without, their mean; r = 0 … d, fp64.
        values (Tensor): How the values are mixed, a block for each head, (H * d, H * d), fp64.
    """

    state: Dict[str, Tensor]
    errors: Tensor
    values: Tensor


def layers_of(site: HeadChannels) -> Dict[str, nn.Module]:
    """The layers whose inputs' moments :func:`rotate_heads` needs, by path."""
    paths = dict.fromkeys([*(path for path, _ in head_parts(site)), site.view.output])
    return {path: site.module(path) for path in paths}


def rotate_heads(site: HeadChannels, moments: Mapping[str, Moments],
                 rho: float = 1e-3) -> HeadRotation:
    """The bases of one attention layer; its weights are not changed here.

    Args:
        site (HeadChannels): Of a dense layer: H heads of d channels.
        moments (Mapping[str, Moments]): Of the inputs of :func:`layers_of`, by path.
        rho (float): Relative ridge of the moments. Defaults to 1e-3.
    """
    heads = site.total // site.view.width
    parts = head_parts(site)
    queries, keys = (_second_moment(site, part, moments[part[0]], heads, centred)
                     for part, centred in ((parts.queries, False), (parts.keys, True)))
    output = site.module(site.view.output)
    columns = output.weight.detach().double().unflatten(1, (heads, -1)).transpose(0, 1)
    query, key, logits = logit_bases(queries, keys, rho)
    value, back, values = value_bases(columns, _own(moments[site.view.output].covariance, heads),
                                      rho)
    state: Dict[str, Tensor] = {}
    for (path, rows), mixing in zip(parts, (query, key, value)):
        layer = site.module(path)
        weight = state.setdefault(f'{path}.weight', layer.weight.detach().clone())
        bias = None
        if layer.bias is not None:
            bias = state.setdefault(f'{path}.bias', layer.bias.detach().clone())
        folded, shifted = fold_heads(weight[rows], None if bias is None else bias[rows], mixing)
        weight[rows] = folded
        if bias is not None:
            bias[rows] = shifted
    state[f'{site.view.output}.weight'] = back.transpose(0, 1).flatten(1).to(output.weight)
    errors = [tails.sum(0) / tails[:, 0].sum().clamp(min=1e-30)
              for tails in (singular_tails(logits), singular_tails(values))]
    return HeadRotation(state, torch.stack(errors).mean(0), torch.block_diag(*value))


def take_weights(host: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a dense host the weights of a rotation, in place."""
    parameters = dict(host.named_parameters())
    with torch.no_grad():
        for path, value in state.items():
            parameters[path].copy_(value)


def width_order(site: HeadChannels) -> List[int]:
    """Units by width: the first channels of all heads, then the second ones, and so on."""
    width = site.view.width
    return [head * width + channel for channel in range(width)
            for head in range(site.total // width)]


def _second_moment(site: HeadChannels, part: Tuple[str, slice], moments: Moments, heads: int,
                   centred: bool) -> Tensor:
    """Of queries or keys, from that of what they are projected from, (H, d, d)."""
    path, rows = part
    layer = site.module(path)
    weight = layer.weight.detach()[rows].to(moments.covariance)
    moment = weight @ moments.covariance @ weight.T
    if not centred:
        mean = weight @ moments.mean
        mean = mean if layer.bias is None else mean + layer.bias.detach()[rows].to(mean)
        moment = moment + torch.outer(mean, mean)
    return _own(moment, heads)


def _own(matrix: Tensor, heads: int) -> Tensor:
    """The blocks (H, d, d) of every head with itself."""
    blocks = matrix.unflatten(0, (heads, -1)).unflatten(2, (heads, -1))
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)
