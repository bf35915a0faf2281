"""How many units every site keeps: the least total loss under a budget."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .cost import check_range

#: Most points of the grid of costs.
_POINTS = 20000


class Curve(NamedTuple):
    """Loss and cost of a site at each of its possible sizes."""

    sizes: Sequence[int]  # ascending
    losses: Sequence[float]  # not negative
    costs: Sequence[int]  # such as MACs, ascending


def allocate(curves: Mapping[str, Curve], budget: int) -> dict[str, int]:
    """Sizes with the least sum of losses whose costs sum to at most a budget.

    This is a multiple-choice knapsack, solved by dynamic programming over the cost above that of
    the smallest network. Costs are rounded up to a grid, so the budget always holds. The grid is
    the greatest common divisor of all cost steps, and the answer exact, if that gives at most
    20,000 points; else the budget counts as smaller by at most one grid point per site.

    Args:
        curves (Mapping[str, Curve]): By site.
        budget (int): Largest total cost.

    Returns:
        dict[str, int]: Size by site.

    Raises:
        ValueError: The budget is below the cost of the smallest sizes.
    """
    lowest = sum(curve.costs[0] for curve in curves.values())
    highest = sum(curve.costs[-1] for curve in curves.values())
    check_range(None, min(budget, highest), lowest, highest)
    room = min(budget, highest) - lowest
    steps = [int(cost - curve.costs[0]) for curve in curves.values() for cost in curve.costs]
    grid = max(int(np.gcd.reduce(steps)) or 1, -(-room // _POINTS))
    points = room // grid
    # best[p]: least loss of the sites so far with at most p grid points above their smallest sizes
    best = np.zeros(points + 1)
    chosen: list[tuple[str, np.ndarray]] = []
    for name, curve in curves.items():
        grown = np.full(points + 1, np.inf)
        picks = np.zeros(points + 1, np.int64)
        for index, (loss, cost) in enumerate(zip(curve.losses, curve.costs)):
            shift = -(-int(cost - curve.costs[0]) // grid)
            if shift > points:  # costs ascend: no larger size fits either
                break
            candidate = best[:points + 1 - shift] + loss
            better = candidate < grown[shift:]
            grown[shift:][better] = candidate[better]
            picks[shift:][better] = index
        best = grown
        chosen.append((name, picks))
    sizes, place = {}, points  # traced back from the whole room, last site first
    for name, picks in reversed(chosen):
        index, curve = int(picks[place]), curves[name]
        sizes[name] = int(curve.sizes[index])
        place -= -(-int(curve.costs[index] - curve.costs[0]) // grid)
    return {name: sizes[name] for name in curves}
