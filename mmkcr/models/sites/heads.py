"""Heads of attention, whole or with some of their channels (Once for Both, section 3)."""

from typing import Any

from torch import Tensor, nn

from mmkcr.core import Axis, Unsupported
from .attention_width import AttentionWidth
from .rotary_pairs import RotaryPairs


class Heads(AttentionWidth):
    """A unit is a head: its queries, keys, values and columns of the output projection."""

    kind = 'heads'

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> 'Heads':
        """The heads of an attention layer."""
        if getattr(host, 'rope_mixed', False):  # an attribute of timm's models
            raise Unsupported(f'each head has rotary positions of its own at `{view.path}`')
        _check_positions(host, view.path)
        site = cls(host, view, view.path, view.heads, view.heads)
        site.layout = (1, view.width)
        return site

    def axes(self) -> list[Axis]:
        """See :class:`~mmkcr.core.Site`."""
        view = self.view
        return [*super().axes(), *(view.of_heads(self.owner) if view.of_heads is not None else ())]

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        return len(kept), self.view.width


class HeadChannels(AttentionWidth):
    """A unit is a channel of a head, with one mask for queries, keys and values.

    Unit ``h * width + c`` is channel c of head h. A selection keeps equally many channels of every
    head that it keeps. The softmax keeps the scale of the dense head. If rotary positions rotate
    pairs of channels, the site is a :class:`~mmkcr.models.sites.rotary_pairs.RotaryPairs`.
    """

    kind = 'head_channels'

    @classmethod
    def of(cls, host: nn.Module, view: Any) -> AttentionWidth:
        """The channels of all heads of an attention layer."""
        if view.why_no_width:
            raise Unsupported(f'{view.why_no_width} at `{view.path}`')
        if view.rotary:
            site = RotaryPairs(host, view, view.path, view.width // 2)
            # 'half': a head has the first channels of all pairs, then the second; else pair by pair
            site.layout = (2 * view.heads, 1) if view.rotary == 'half' else (view.heads, 2)
            return site
        if view.why_uncalled:
            raise Unsupported(f'{view.why_uncalled} at `{view.path}`')
        _check_positions(host, view.path)  # whole heads may go
        return cls(host, view, view.path, view.heads * view.width, view.heads)

    def _shape(self, kept: Tensor) -> tuple[int, int]:
        heads = len(self.group_counts(kept))  # heads that keep any channel
        return heads, len(kept) // heads


def _check_positions(host: nn.Module, path: str) -> None:
    """Refuse heads whose position biases are in a table of another module, as an option of BEiT."""
    modules, names = [host], path.split('.')
    for name in names[:-1]:
        modules.append(modules[-1].get_submodule(name))
    # an attribute of mmpretrain's and of timm's models
    if any(isinstance(getattr(module, 'rel_pos_bias', None), nn.Module) for module in modules):
        raise Unsupported(f'all layers share the position biases of the heads at `{path}`')
