"""Narrower heads with rotary positions: which pairs stay.

Only a scaled rotation of each pair commutes with the position's rotation, so pairs are selected,
by the moments of the rotated queries and keys. Positions do not touch the values: they are mixed
like those of other heads, and the best mixtures take the places of the best pairs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmkcr.functional.attention_refit import rotary_order, rotary_pairs
from mmkcr.functional.moments import Moments
from mmkcr.models.sites.rotary_pairs import RotaryPairs
from .calibration import WeightChange
from .head_rotation import HeadRotation, NarrowHeads, head_parts, rotate_values
from .readers import pick


class TurnedMoments(NamedTuple):
    """Moments of queries and keys after their rotation, as they enter the logits."""

    query: Moments
    key: Moments


@contextmanager
def turned_moments(site: RotaryPairs, rows: int) -> Iterator[TurnedMoments]:
    """Collect moments of rotated queries and keys from whatever runs within the block.

    Args:
        site (RotaryPairs): Opened site.
        rows (int): Maximum number of tokens per image.
    """
    view, device = site.view, next(site.owner.parameters()).device
    moments = TurnedMoments(*(Moments(view.width, batch=(view.heads, ), device=device,
                                      name=f'{site.name} {part}') for part in ('queries', 'keys')))
    calls, images = [0], [0]

    def take(_: nn.Module, args: tuple, out: Tensor) -> None:
        tokens = out.detach().transpose(0, 1).flatten(1, 2)  # (H, B N, d)
        chosen = pick(tokens.shape[1], rows, range(images[0], images[0] + len(out)))
        tokens = tokens if chosen is None else tokens[:, chosen.to(tokens.device)]
        moments[calls[0] % 2].add(tokens)  # the host rotates queries, then keys
        images[0] += len(out) * (calls[0] % 2)
        calls[0] += 1

    handle = site.owner.rotary.register_forward_hook(take)
    try:
        yield moments
    finally:
        handle.remove()


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
    # keys are centred, since the softmax does not see what is the same for all keys
    found = rotary_order(turned.query.second_moment, turned.key.covariance, view.rotary.layout, rho)
    order = found.order.cpu()
    places = rotary_pairs(view.width, view.rotary.layout)[order].flatten()  # (d,), best pair first
    values, lost = rotate_values(site, state, moments[view.output], rho, places)
    # a pair is two channels: every second of the d + 1 energies of the values
    errors = [error / error[0].clamp(min=1e-30)
              for error in (found.errors.cpu(), lost.sum(0)[::2].cpu())]
    return HeadRotation(state, order, torch.stack(errors).mean(0), values)


class RotaryHeads(NarrowHeads):
    """Heads of which pairs of channels are selected."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turned: TurnedMoments | None = None

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Observe the rotated queries and keys."""
        with turned_moments(self.site, self.settings.rows) as self._turned:
            yield

    def _rotated(self, moments: Mapping[str, Moments]) -> HeadRotation:
        return rotate_pairs(self.site, moments, self._turned, self.settings.rho)

    def _narrower_keys(self, order: Tensor) -> WeightChange:
        """Keys without some pairs. The bias goes, too: it is rotated, so the softmax sees it."""
        site, view, part = self.site, self.site.view, head_parts(self.site)[1]
        layer = site.module(part.path)
        keys = layer.weight.detach()[part.rows]
        bias = site.host.get_parameter(part.bias).detach()[part.entries] if part.bias else \
            keys.new_zeros(len(keys))
        # the bias is one more column: (H, d, inputs + 1)
        keys = torch.cat([keys, bias[:, None]], 1).unflatten(0, (view.heads, view.width))
        pairs = rotary_pairs(view.width, view.rotary.layout).to(keys.device)
        deltas = keys.new_zeros(len(self.probed()), *keys.shape)
        for delta, count in zip(deltas, self.probed()):
            lost = pairs[order[count:].to(keys.device)].flatten()
            delta[:, lost] = -keys[:, lost]
        return WeightChange(layer, keys.new_zeros(keys.shape[-1] - 1), deltas.flatten(1, 2),
                            part.rows)
