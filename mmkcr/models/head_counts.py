"""MACs and parameters of attention some of whose heads an operator computes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmkcr.core import Cost, count_params
from .layers.head_operators import head_operator

if TYPE_CHECKING:
    from .sites.head_operator import HeadOperatorSite


def head_macs(site: 'HeadOperatorSite', size: Cost, input_shape: Sequence[int]) -> Cost:
    """MACs of projections, attention products and operator.

    Args:
        site (HeadOperatorSite): The layer.
        size (Cost): Heads that stay attention.
        input_shape (Sequence[int]): (B, tokens, channels) of the layer's input.
    """
    width, operator = site.view.width, _operator(site)
    _, tokens, dims = input_shape
    patches, replaced = tokens - site.grid.extra, site.total - size
    attention = size * width * tokens * (3 * dims + 2 * tokens)  # q, k, v, and two products
    columns = width * (size + operator.count_out(replaced))  # inputs of the output projection
    return attention + operator.macs(replaced, dims, tokens, patches) + columns * dims * tokens


def head_params(site: 'HeadOperatorSite', size: Cost) -> Cost:
    """Parameters with queries and keys of some heads, and an operator for the others.

    A search's operator is counted as slimming leaves it: folded.

    Args:
        site (HeadOperatorSite): The layer.
        size (Cost): Heads that stay attention.
    """
    owner, replaced = site.owner, site.total - size
    mixed = filter(None, (site.holder, getattr(owner, 'operator', None)))
    row = count_params(owner.qkv) // (3 * site.total)  # the queries of one head, or its keys
    operator, column = _operator(site), owner.proj.weight.numel() // site.total
    folding = 0 if site.gate is None else operator.folded_params(replaced, row, column)
    return (count_params(owner) - sum(map(count_params, mixed)) - 2 * row * replaced
            + operator.params(replaced) + folding)


def _operator(site: 'HeadOperatorSite') -> Any:
    """The layer's operator; for a dense layer, a new one of all heads, to count with."""
    return getattr(site.owner, 'operator', None) or head_operator(site.operator)(
        site.total, site.view.width, site.grid.extra)
