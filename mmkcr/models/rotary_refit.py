"""Narrower heads with rotary positions: which pairs stay, and their queries (SPEC 9).

Only a scaled rotation of each pair commutes with the position's rotation, so pairs are selected,
by the moments of the rotated queries and keys. The queries of the pairs that stay are refitted.
Positions do not touch the values: they are mixed like those of other heads, and the best mixtures
take the places of the best pairs.
"""

from contextlib import ExitStack, contextmanager
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor, nn

from mmkcr.functional.attention_refit import rotary_order, rotary_pairs, rotary_refit
from mmkcr.functional.moments import Moments
from .calibration import WeightChange, input_rows, pick
from .head_rotation import HeadRotation, fold, head_parts, rotate_values
from .sites.rotary_pairs import RotaryPairs


class TurnedMoments(NamedTuple):
    """Moments of queries and keys after their rotation, as they enter the logits."""

    query: Moments
    key: Moments

    @property
    def both(self) -> tuple:
        """Second moment of the queries and covariance of the keys.

        Keys are centred, since the softmax does not see what is the same for all keys.
        """
        return self.query.second_moment, self.key.covariance


@contextmanager
def turned_moments(sites: Mapping[str, RotaryPairs],
                   rows: int) -> Iterator[Dict[str, TurnedMoments]]:
    """Collect moments of rotated queries and keys from whatever runs within the block, by site.

    Args:
        sites (Mapping[str, RotaryPairs]): Opened sites.
        rows (int): Maximum number of tokens per batch.
    """
    found = {}
    with ExitStack() as stack:
        for name, site in sites.items():
            view, device = site.view, next(site.owner.parameters()).device
            found[name] = TurnedMoments(*(Moments(
                view.width, batch=(view.heads, ), device=device, name=f'{name} {part}')
                for part in ('queries', 'keys')))
            handle = site.owner.rotary.register_forward_hook(_taker(found[name], rows))
            stack.callback(handle.remove)
        yield found


def _taker(moments: TurnedMoments, rows: int) -> Any:
    calls, generator = [0], torch.Generator().manual_seed(0)

    def take(_: nn.Module, args: tuple, out: Tensor) -> None:
        tokens = out.detach().transpose(0, 1).flatten(1, 2)  # (H, B N, d)
        chosen = pick(tokens.shape[1], rows, generator)
        tokens = tokens if chosen is None else tokens[:, chosen.to(tokens.device)]
        moments[calls[0] % 2].add(tokens)  # the host rotates queries, then keys
        calls[0] += 1

    return take


def rotate_pairs(site: RotaryPairs, moments: Mapping[str, Moments], turned: TurnedMoments,
                 rho: float = 1e-3) -> HeadRotation:
    """The order of a layer's pairs and bases of its values; its weights are not changed here.

    Args:
        site (RotaryPairs): Site of a dense layer.
        moments (Mapping[str, Moments]): Moments of the output projection's inputs, by its path.
        turned (TurnedMoments): Moments of queries and keys.
        rho (float): Relative ridge. Defaults to 1e-3.
    """
    view, state = site.view, {}
    found = rotary_order(*turned.both, view.rotary.layout, rho)
    order = found.order.cpu()
    places = rotary_pairs(view.width, view.rotary.layout)[order].flatten()  # (d,), best pair first
    values, lost = rotate_values(site, state, moments[view.output], rho, places)
    # a pair is two channels: every second of the d + 1 energies of the values
    errors = [error / error[0].clamp(min=1e-30)
              for error in (found.errors.cpu(), lost.sum(0)[::2].cpu())]
    return HeadRotation(state, order, torch.stack(errors).mean(0), values)


def refitted_queries(site: RotaryPairs, turned: TurnedMoments, kept: Tensor,
                     rho: float = 1e-3) -> Dict[str, Tensor]:
    """Weights, by path, of queries refitted to the kept pairs and zero for all other pairs.

    The logits are then the best that scaled rotations of these pairs give. They are never further
    from the dense logits than without a refit.

    Args:
        site (RotaryPairs): Site of a dense layer.
        turned (TurnedMoments): Moments of its queries and keys.
        kept (Tensor): Kept pairs, ascending.
        rho (float): Relative ridge. Defaults to 1e-3.
    """
    state: Dict[str, Tensor] = {}
    fold(site, state, head_parts(site)[0], _mixing(site, turned, kept, rho))
    return state


def _mixing(site: RotaryPairs, turned: TurnedMoments, kept: Tensor, rho: float) -> Tensor:
    """The map of the queries, (H, d, d), zero in the rows of removed pairs."""
    query, key = turned.both
    channels, rows = rotary_refit(query, key, kept.to(query.device), site.view.rotary.layout, rho)
    mixing = torch.zeros_like(query)  # (H, d, d)
    mixing[:, channels] = rows
    return mixing


def query_change(site: RotaryPairs, turned: TurnedMoments, kept: Sequence[Tensor],
                 rho: float = 1e-3) -> WeightChange:
    """Weight changes of :func:`refitted_queries` for several choices of pairs."""
    part = head_parts(site)[0]
    layer = site.module(part.path)
    deltas = []
    for units in kept:
        new = refitted_queries(site, turned, units, rho)
        # [dW, db]: the bias is one more column, read from an input of ones (`_with_ones`)
        delta = torch.cat([new[f'{part.path}.weight'] - layer.weight.detach(),
                           layer.weight.new_zeros(len(layer.weight), 1)], 1)
        if part.bias:
            bias = site.host.get_parameter(part.bias).detach()
            delta[part.rows, -1] = (new[part.bias] - bias)[part.entries]
        deltas.append(delta)
    return WeightChange(layer, deltas[0].new_zeros(deltas[0].shape[1]), torch.stack(deltas),
                        _with_ones)


def _with_ones(layer: nn.Module, x: Tensor) -> Tensor:
    rows = input_rows(layer, x)
    return torch.cat([rows, rows.new_ones(len(rows), 1)], 1)
