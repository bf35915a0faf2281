"""How many units every site keeps: least loss under a budget, exactly."""

from typing import Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np


class Curve(NamedTuple):
    """What a site loses and costs at the sizes that it may have.

    Args:
        sizes (Sequence[int]): Ascending.
        losses (Sequence[float]): At these sizes, not negative.
        costs (Sequence[int]): At these sizes, such as MACs; ascending.
    """

    sizes: Sequence[int]
    losses: Sequence[float]
    costs: Sequence[int]


def allocate(curves: Mapping[str, Curve], budget: int, bins: int = 20000) -> Dict[str, int]:
    """Sizes with the least sum of losses whose costs sum to at most a budget.

    A multiple-choice knapsack by dynamic programming over the cost above the smallest network.
    Costs are rounded up to a grid, so the budget always holds. The grid is the greatest common
    divisor of all cost steps where it has at most ``bins`` points up to the budget (then the
    answer is exact), else it has ``bins`` points (and the answer is that of a budget smaller by
    at most one point a site).

    Args:
        curves (Mapping[str, Curve]): By site.
        budget (int): Most cost in sum.
        bins (int): Points of the grid at most. Defaults to 20000.

    Returns:
        dict[str, int]: Size by site.

    Raises:
        ValueError: The budget is below the cost of the smallest sizes; the message gives the
            reachable range.
    """
    lowest = sum(curve.costs[0] for curve in curves.values())
    highest = sum(curve.costs[-1] for curve in curves.values())
    if budget < lowest:
        raise ValueError(f'expected a target within the reachable {lowest / 1e9:.6g}G to '
                         f'{highest / 1e9:.6g}G MACs, found {budget / 1e9:.6g}G')
    room = min(budget, highest) - lowest
    steps = [int(cost - curve.costs[0]) for curve in curves.values() for cost in curve.costs]
    grid = max(int(np.gcd.reduce(steps)) or 1, -(-room // bins))
    points = room // grid
    best = np.zeros(points + 1)  # least loss with at most so much cost above the smallest
    chosen: List[Tuple[str, np.ndarray]] = []
    for name, curve in curves.items():
        grown = np.full(points + 1, np.inf)
        picks = np.zeros(points + 1, np.int64)
        for index, (loss, cost) in enumerate(zip(curve.losses, curve.costs)):
            shift = -(-int(cost - curve.costs[0]) // grid)
            if shift > points:
                break
            candidate = best[:points + 1 - shift] + loss
            better = candidate < grown[shift:]
            grown[shift:][better] = candidate[better]
            picks[shift:][better] = index
        best = grown
        chosen.append((name, picks))
    sizes, place = {}, points
    for name, picks in reversed(chosen):
        index, curve = int(picks[place]), curves[name]
        sizes[name] = int(curve.sizes[index])
        place -= -(-int(curve.costs[index] - curve.costs[0]) // grid)
    return {name: sizes[name] for name in curves}
