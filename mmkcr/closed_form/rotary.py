"""Narrower heads with rotary positions: which pairs stay.

Only a scaled rotation of each pair commutes with the position's rotation, so pairs are selected,
by the moments of the rotated queries and keys. Positions do not touch the values: they are mixed
like those of other heads, and the best mixtures take the places of the best pairs.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from mmkcr.functional.attention_refit import rotary_order, rotary_pairs
from mmkcr.functional.moments import Moments
from .head_rotation import NarrowHeads, lost_share
from .readers import pick


class RotaryHeads(NarrowHeads):
    """Heads of which pairs of channels are selected."""

    #: Moments of queries and of keys after their rotation, as they enter the logits.
    turned: tuple[Moments, Moments]

    def observing(self) -> AbstractContextManager:
        """Observe the rotated queries and keys."""
        site, view, images = self.site, self.site.view, [0, 0]
        self.turned = tuple(Moments(
            view.width, batch=(view.heads, ), device=next(site.owner.parameters()).device,
            name=f'{site.name} {part}') for part in ('queries', 'keys'))

        def take(_: nn.Module, args: tuple, out: Tensor) -> None:
            part = int(images[1] < images[0])  # the host rotates queries, then keys
            tokens = out.detach().transpose(0, 1).flatten(1, 2)  # (H, B N, d)
            numbers = range(images[part], images[part] + len(out))
            chosen = pick(tokens.shape[1], self.settings.rows, numbers)
            self.turned[part].add(tokens if chosen is None else
                                  tokens[:, chosen.to(tokens.device)])
            images[part] = numbers.stop

        return site.owner.rotary.register_forward_hook(take)

    def rotate(self, moments: Mapping[str, Moments]) -> tuple[Tensor, Tensor, Tensor]:
        """Mix the values, and choose pairs; weights of queries and keys stay as they are."""
        view, (queries, keys) = self.site.view, self.turned
        # keys are centred, since the softmax does not see what is the same for all keys
        ranked = rotary_order(queries.second_moment, keys.covariance, view.rotary,
                              self.settings.rho)
        order = ranked.order.cpu()
        places = rotary_pairs(view.width, view.rotary)[order].flatten()  # best pair first
        values, lost = self._rotate_values(moments, places)
        # a pair is two channels: every second of the d + 1 energies of the values
        errors = lost_share(ranked.errors[None]) + lost_share(lost[:, ::2])
        return order, errors.cpu() / 2, values

    def _channels(self, units: Tensor) -> Tensor:
        view = self.site.view
        pairs = rotary_pairs(view.width, view.rotary)[units].flatten()
        return (torch.arange(view.heads)[:, None] * view.width + pairs).flatten()
