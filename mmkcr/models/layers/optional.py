"""Arguments that may be None, in layers that are recorded as graphs, which have no branches.

Where a layer is not recorded, each function is the conditional that it is named after.
"""

from typing import Any

import torch
from torch import Tensor, fx

#: The smallest float16: no entry of a learned bias, which begins at zero, is exactly it.
RARE = 2.**-24


def given(value: Any) -> Any:
    """Whether a value is not None."""
    return value != None if isinstance(value, fx.Proxy) else value is not None  # noqa: E711


def chosen(condition: Any, one: Any, other: Any) -> Any:
    """One value if a condition is true, else the other; both are computed."""
    if isinstance(condition, fx.Proxy):  # a list of the one value or of none, and the reverse
        return ((one, ) * condition + (other, ) * (1 - condition))[0]
    return one if condition else other


def or_zeros(term: Tensor | None, like: Tensor, edge: float = 0.) -> Tensor:
    """A term of scores, or zeros of shape (1, 1, 1) where there is none.

    Args:
        term (Tensor, optional): Has three dimensions.
        like (Tensor): Of the zeros' type and device.
        edge (float): In a graph, entries of this value get no gradient, and it stands for the
            zeros, which a softmax does not see. Defaults to 0.
    """
    if not isinstance(term, fx.Proxy):
        return like.new_zeros((1, 1, 1)) if term is None else term
    # `clamp` takes None as a bound, also in TorchScript, which `chosen` does not become
    bound, infinite = like.new_full((1, 1, 1), edge), like.new_ones((1, 1, 1)) / 0
    return torch.clamp(bound, -infinite, term) + torch.clamp(bound, term, infinite) - bound


def required(value: Tensor | None, like: Tensor) -> Tensor:
    """A value on the device of ``like`` that is there, although its type says otherwise."""
    if not isinstance(value, fx.Proxy):
        return value
    return torch.clamp(like.new_zeros(1), value, value)

